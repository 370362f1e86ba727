"""A released model as ONNX, which runs without torch and without incrowd."""

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd.errors import ConfigError

INPUT, OUTPUT = "features", "outputs"
"""What the one input of the graph is called, [examples, ...], and its one output."""

_OLDEST = 2  # examples: of one alone, torch takes their number for a constant


def onnx_of(module: nn.Module, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> bytes:
    """The module as it answers for examples of this shape, however many.

    Guarantee: the file holds the module and its weights, not where its code lies, nor anything of what it was
    trained on.

    Edge cases: a module that torch cannot write as ONNX, and one for several inputs, are a `ConfigError`; so is a
    missing package, which `incrowd[onnx]` brings.
    """
    for package in ("onnx", "onnxscript"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[onnx]' brings it")
    examples: NDArray[Any] = np.zeros((_OLDEST, *shape), dtype)
    try:
        with _quiet():
            program = torch.onnx.export(
                module.eval(),
                (torch.from_numpy(examples),),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("examples", min=1)},),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        remedy = (
            f"torch cannot write it as ONNX: {str(error).strip().splitlines()[0]}; model.safetensors has its weights"
        )
        raise ConfigError(field="module", value=type(module).__name__, remedy=remedy) from error
    assert program is not None  # noqa: S101 - with dynamo there is always one
    graph = program.model_proto
    _without_notes(graph)
    content: bytes = graph.SerializeToString()
    return content


def _without_notes(message: Any) -> None:
    """Take away what torch notes of each node: the lines of code that it is from, with their paths."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if isinstance(value, Iterable) else (value,):
                _without_notes(inner)


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch speaks of other packages, and of its own ways that will go."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
