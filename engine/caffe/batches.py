"""forward_all and forward_backward_all of caffe.Net: more samples than one batch holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Arrays = dict[str, np.ndarray]


class BatchedRuns:
    """For a class that has inputs, outputs, blobs, forward and backward."""

    inputs: list[str]
    outputs: list[str]
    blobs: dict[str, Any]

    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: np.ndarray) -> Arrays:
        """Runs any number of samples in batches, the last one padded with zeros; returns outputs and `blobs` of all
        samples."""
        total = self._samples(inputs)
        outputs = [self._copies(self.forward(blobs=blobs, **batch)) for batch in self._batches(inputs)]
        return _joined(outputs, total)

    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **given: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """As forward_all, and backward on the gradients of outputs among `given`; returns (blobs, diffs)."""
        inputs = {name: values for name, values in given.items() if name in self.inputs}
        tops = {name: values for name, values in given.items() if name not in self.inputs}
        total = self._samples(inputs)
        forwards, backwards = [], []
        top_batches = self._batches(tops) if tops else iter(lambda: {}, None)
        for batch, top_batch in zip(self._batches(inputs), top_batches):
            forwards.append(self._copies(self.forward(blobs=blobs, **batch)))
            backwards.append(self._copies(self.backward(diffs=diffs, **top_batch)))
        return _joined(forwards, total), _joined(backwards, total)

    def _samples(self, given: Arrays) -> int:
        if not given:
            raise ValueError(f"expected arrays for the inputs {', '.join(self.inputs)}")
        return len(next(iter(given.values())))

    def _batches(self, given: Arrays) -> Iterator[Arrays]:
        size = self.blobs[next(iter(given))].num
        for begin in range(0, self._samples(given), size):
            batch = {}
            for name, values in given.items():
                values = np.asarray(values, np.float32)[begin : begin + size]
                missing = np.zeros((size - len(values), *values.shape[1:]), np.float32)
                batch[name] = np.concatenate([values, missing])
            yield batch

    @staticmethod
    def _copies(arrays: Arrays) -> Arrays:
        return {name: np.array(values) for name, values in arrays.items()}


def _joined(outputs: list[Arrays], total: int) -> Arrays:
    """Blobs without a batch axis (losses) have one value for each batch."""
    result = {}
    for name in outputs[0]:
        arrays = [batch[name] for batch in outputs]
        result[name] = np.concatenate(arrays)[:total] if arrays[0].ndim else np.array(arrays)
    return result
