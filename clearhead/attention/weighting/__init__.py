"""Weightings: how a row of scores becomes a row of weights. Each has one file, and one line that registers it.

A weighting sees `masked` scores, `blocked` (-inf) where the query may not attend, and `allowed`, True where it may. A
row that may attend nothing gets weights of zero.

>>> import torch, clearhead as ch
>>> q, k, v = torch.eye(2), torch.eye(2), torch.tensor([[1.0], [3.0]])
>>> ch.attend(q, k, v, weighting=ch.weighting.Argmax()).flatten().tolist()
[1.0, 3.0]
>>> ch.attend(torch.zeros(1, 2), k, v, weighting=ch.weighting.Argmax(ties="average")).item()
2.0
"""

from collections.abc import Mapping

from clearhead.attention.weighting.argmax import Argmax
from clearhead.attention.weighting.base import Weighting, softmax_rows
from clearhead.attention.weighting.features import Elu, Features, LogFeatures, RandomFeatures, Relu, SoftmaxFeatures
from clearhead.attention.weighting.kernelized import Kernelized
from clearhead.attention.weighting.sigmoid import Sigmoid
from clearhead.attention.weighting.softmax import Softmax
from clearhead.attention.weighting.sparsemax import Sparsemax
from clearhead.registry import Examples, register

__all__ = [
    "Argmax",
    "Elu",
    "Features",
    "Kernelized",
    "LogFeatures",
    "RandomFeatures",
    "Relu",
    "Sigmoid",
    "Softmax",
    "SoftmaxFeatures",
    "Sparsemax",
    "Weighting",
    "softmax_rows",
]

register(Softmax, option="softmax", examples={"softmax": Softmax(), "warm softmax": Softmax(temperature=2.0)})
register(
    Argmax,
    option="argmax",
    examples={
        "argmax": Argmax(),
        "argmax last": Argmax(ties="last"),
        "argmax average": Argmax(ties="average"),
        "argmax frozen": Argmax(gradient="none"),
    },
)
register(Sigmoid, option="sigmoid", examples={"sigmoid": Sigmoid()})
register(Sparsemax, option="sparsemax", examples={"sparsemax": Sparsemax()})
register(
    Kernelized,
    option="kernelized",
    examples={
        "linear elu": Kernelized("elu"),
        "linear relu": Kernelized("relu"),
        "linear softmax": Kernelized("softmax"),
        "linear random": Kernelized("random"),
        "linear sum": Kernelized("elu", normalised=False),
    },
)

TABLE: Mapping[str, Weighting] = Examples("weighting")
"""Every weighting by name, those that users register too: the command line and the test grid read it."""
