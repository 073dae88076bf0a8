# Types of the functions of SciPy whose results this project returns. SciPy itself has none; its
# other modules stay unknown to mypy.
from typing import Any

def __getattr__(name: str) -> Any: ...
