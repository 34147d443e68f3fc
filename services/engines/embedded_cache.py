"""The keys and values of all running requests, one row each, aligned at the right.

         columns:  0 ····················· end
      row 0        ·········▒▒▒▒▒▒▒▒▒▒▒▒▒▒█         ▒ tokens it has, █ the one being written, · not its own: masked
      row 1        ····················▒▒▒█
      row 2        ·····▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒█

All rows write their next token into the same column, so a step writes one slice and reads one slice, whatever the lengths, and new rows are
prefilled in place, ending in the column where the others end. When the last column is reached, everything moves to the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps of a token: `keys` (heads, size) and `values` (heads, size)."""

    keys: tuple[int, int]
    values: tuple[int, int]


@dataclass(slots=True)
class _Window:
    """What the next forward pass sees (columns visible_from to end) and writes (write_from to end) of which rows; all half-open."""

    first_row: int = 0
    last_row: int = 0
    visible_from: int = 0
    write_from: int = 0
    end: int = 0


class _RightAlignedLayer(CacheLayerMixin):
    """One layer's keys and values, [rows, heads, columns, size] each."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, window: _Window) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library's
        self.keys, self._all_keys = keys, keys
        self.values, self._all_values = values, values
        self.window = window
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the memory is there from the start."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes what the model computed for the new tokens; returns what they may attend to."""
        window = self.window
        rows = slice(window.first_row, window.last_row)
        self._all_keys[rows, :, window.write_from : window.end] = key_states
        self._all_values[rows, :, window.write_from : window.end] = value_states
        return self._all_keys[rows, :, window.visible_from : window.end], self._all_values[rows, :, window.visible_from : window.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.end - self.window.visible_from, 0

    def get_seq_length(self) -> int:
        return self.window.write_from - self.window.visible_from

    def get_max_length(self) -> int:
        return -1


class RightAlignedCache(Cache):
    """Memory for `rows` requests; `end` is the column behind the newest token of all of them."""

    def __init__(self, shapes: Sequence[LayerShape], rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        self._window = _Window()
        self._columns = columns

        def zeros(heads_and_size: tuple[int, int]) -> torch.Tensor:
            # Zeros, not empty: a masked column still takes part in 0 * value, and memory as it comes may hold NaN.
            heads, size = heads_and_size
            return torch.zeros(rows, heads, columns, size, dtype=dtype, device=device)

        pairs = [(zeros(shape.keys), zeros(shape.values)) for shape in shapes]
        self._tensors = [tensor for pair in pairs for tensor in pair]
        super().__init__(layers=[_RightAlignedLayer(keys, values, self._window) for keys, values in pairs])

    @property
    def num_bytes(self) -> int:
        """Memory of all layers."""
        return sum(tensor.nbytes for tensor in self._tensors)

    def begin_rows(self, first_row: int, count: int, width: int, longest: int) -> None:
        """The next forward pass prefills `count` rows from `first_row` on with `width` tokens; those before have up to `longest`."""
        end = self._window.end
        if first_row == 0:
            end = width
        elif end < width:
            end = self._move(first_row, longest, width)
        self._set_window(first_row, first_row + count, end - width, end - width, end)

    def begin_token(self, rows: int, longest: int) -> None:
        """The next forward pass writes one token to each of the first `rows` rows, of which the longest has `longest` before it."""
        end = self._window.end
        if end == self._columns:
            end = self._move(rows, longest, longest)
        self._set_window(0, rows, end - longest, end, end + 1)

    def copy_rows(self, sources: Sequence[int], first_row: int, width: int) -> None:
        """Copies the newest `width` tokens of the rows `sources` to the rows from `first_row` on."""
        columns = slice(self._window.end - width, self._window.end)
        for tensor in self._tensors:
            index = torch.tensor(sources, device=tensor.device)
            tensor[first_row : first_row + len(sources), :, columns] = tensor[index, :, columns]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copies the newest `length` tokens of one row to another."""
        columns = slice(self._window.end - length, self._window.end)
        for tensor in self._tensors:
            tensor[target, :, columns] = tensor[source, :, columns]

    def _set_window(self, first_row: int, last_row: int, visible_from: int, write_from: int, end: int) -> None:
        window = self._window
        window.first_row, window.last_row = first_row, last_row
        window.visible_from, window.write_from, window.end = visible_from, write_from, end

    def _move(self, rows: int, length: int, new_end: int) -> int:
        """Moves the newest `length` tokens of the first `rows` rows so that they end at `new_end`."""
        end = self._window.end
        for tensor in self._tensors:
            tensor[:rows, :, new_end - length : new_end] = tensor[:rows, :, end - length : end].clone()
        self._window.end = new_end
        return new_end
