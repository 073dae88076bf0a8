"""Effects, fixed and of groups, along time, over areas and in the plane, inferred by EP."""

from qpruntime.effects.areas import Areas
from qpruntime.effects.fixed import Fixed
from qpruntime.effects.graph import Graph
from qpruntime.effects.groups import Groups
from qpruntime.effects.mesh import Mesh
from qpruntime.effects.meshing import mesh_over
from qpruntime.effects.model import EffectsModel
from qpruntime.effects.plane import Plane
from qpruntime.effects.product import Product
from qpruntime.effects.series import Series
from qpruntime.effects.table import Table
from qpruntime.effects.walk import Walk

__all__ = [
    "Areas",
    "EffectsModel",
    "Fixed",
    "Graph",
    "Groups",
    "Mesh",
    "Plane",
    "Product",
    "Series",
    "Table",
    "Walk",
    "mesh_over",
]
