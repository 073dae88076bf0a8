"""Effects, fixed and of groups, along time, over areas and in the plane, inferred by EP."""

from qpruntime.effects.areal import Areas, Graph
from qpruntime.effects.autoregressive import Autoregressive
from qpruntime.effects.fixed import Fixed
from qpruntime.effects.groups import Groups
from qpruntime.effects.interaction import Product
from qpruntime.effects.mesh import Mesh, mesh_over
from qpruntime.effects.model import EffectsModel
from qpruntime.effects.random_walk import Walk
from qpruntime.effects.results import SummaryTable
from qpruntime.effects.spde import Plane

__all__ = [
    "Areas",
    "Autoregressive",
    "EffectsModel",
    "Fixed",
    "Graph",
    "Groups",
    "Mesh",
    "Plane",
    "Product",
    "SummaryTable",
    "Walk",
    "mesh_over",
]
