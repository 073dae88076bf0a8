"""Fitted classifiers as ONNX graphs, which run without Python (extra ``onnx``)."""

from __future__ import annotations

from qpruntime.onnx.classifier import to_onnx

__all__ = ["to_onnx"]
