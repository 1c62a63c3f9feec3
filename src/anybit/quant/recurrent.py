"""Recurrent layers in plain tensor operations, so that vmap, compile and export see their matrices and states.

Sites: every matrix under its own name (weight_ih_l0, weight_hh_l0, …), and what it is multiplied with: `input_l0`, the
sequence that a layer reads, and `hidden_l0`, the state of a direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError

State = tuple[Tensor, ...]
"""(h,), and for an LSTM (h, c)."""
Cell = Callable[[Tensor, Tensor, State], State]
"""(W_ih·x + b_ih, W_hh·h + b_hh, state) → next state."""


def lstm_cell(x: Tensor, h: Tensor, state: State) -> State:
    """Return (h', c'): c' = σ(f)·c + σ(i)·tanh(g), h' = σ(o)·tanh(c')."""
    i, f, g, o = (x + h).chunk(4, -1)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_cell(x: Tensor, h: Tensor, state: State) -> State:
    """Return h' = (1 − z)·n + z·h, with n = tanh(x_n + r·h_n)."""
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (n + z * (state[0] - n),)


def tanh_cell(x: Tensor, h: Tensor, state: State) -> State:
    """Return h' = tanh(x + h)."""
    return (torch.tanh(x + h),)


def relu_cell(x: Tensor, h: Tensor, state: State) -> State:
    """Return h' = max(x + h, 0)."""
    return (torch.relu(x + h),)


CELLS: dict[str, Cell] = {"LSTM": lstm_cell, "GRU": gru_cell, "RNN_TANH": tanh_cell, "RNN_RELU": relu_cell}


def recurrent_refusal(layer: nn.RNNBase) -> str:
    """Say why a recurrent layer cannot be trained as it is; empty if it can."""
    return "proj_size is not computed: use a Linear after it" if layer.proj_size else ""


def _names(layer: Any) -> list[list[str]]:
    """Return the names of the directions, per layer: l0, l0_reverse."""
    ends = ("", "_reverse") if layer.bidirectional else ("",)
    return [[f"l{number}{end}" for end in ends] for number in range(layer.num_layers)]


def recurrent_weights(layer: nn.RNNBase) -> dict[str, tuple[str, ...]]:
    """Return {matrix: (the input it is multiplied with,)}."""
    return {f"weight_{kind}_{name}": (f"input_l{number}" if kind == "ih" else f"hidden_{name}",)
            for number, names in enumerate(_names(layer)) for name in names for kind in ("ih", "hh")}


class QuantizedRecurrent(nn.Module):
    """nn.LSTM, nn.GRU or nn.RNN, step by step."""

    def __init__(self, like: nn.RNNBase) -> None:
        super().__init__()
        for name, parameter in like._parameters.items():
            self.register_parameter(name, parameter)
        self.cell, self.with_memory = CELLS[like.mode], like.mode == "LSTM"
        self.names, self.batch_first, self.hidden_size = _names(like), like.batch_first, like.hidden_size
        # A module each: one that is called twice would draw the same mask again.
        self.between = nn.ModuleList(nn.Dropout(like.dropout) for _ in range(like.num_layers - 1) if like.dropout)

    def flatten_parameters(self) -> None:
        """Do nothing: there is no flat copy."""

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise ModelError("a recurrent layer takes sequences of one length with a batch dimension, as a tensor of three "
                             "dimensions: pad packed sequences")
        x = x if self.batch_first else x.transpose(0, 1)
        given = None if state is None else state if self.with_memory else (state,)
        last: list[State] = []
        for number, names in enumerate(self.names):
            if number and len(self.between):
                x = self.between[number - 1](x)
            x = getattr(self, f"input_l{number}_quantizer")(x)
            outputs = []
            for name in names:
                start = self._zeros(x) if given is None else tuple(part[len(last)] for part in given)
                output, end = self._direction(x, name, start)
                outputs.append(output)
                last.append(end)
            x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        return x if self.batch_first else x.transpose(0, 1), ends if self.with_memory else ends[0]

    def _zeros(self, x: Tensor) -> State:
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        return (zeros, zeros) if self.with_memory else (zeros,)

    def _direction(self, x: Tensor, name: str, state: State) -> tuple[Tensor, State]:
        """Run through the sequence once: all W_ih·x + b_ih together, then state by state."""
        w_ih, w_hh = (getattr(self, f"weight_{kind}_{name}_quantizer")(getattr(self, f"weight_{kind}_{name}"))
                      for kind in ("ih", "hh"))
        b_ih, b_hh = (getattr(self, f"bias_{kind}_{name}", None) for kind in ("ih", "hh"))
        quantizer = getattr(self, f"hidden_{name}_quantizer")
        steps = F.linear(x, w_ih, b_ih).unbind(1)
        backward, out = name.endswith("_reverse"), []
        for step in reversed(steps) if backward else steps:
            state = self.cell(step, F.linear(quantizer(state[0]), w_hh, b_hh), state)
            out.append(state[0])
        return torch.stack(out[::-1] if backward else out, 1), state


class QuantizedCell(nn.Module):
    """nn.LSTMCell, nn.GRUCell or nn.RNNCell: one step."""

    def __init__(self, like: nn.RNNCellBase) -> None:
        super().__init__()
        for name, parameter in like._parameters.items():
            self.register_parameter(name, parameter)
        mode = "LSTM" if isinstance(like, nn.LSTMCell) else "GRU" if isinstance(like, nn.GRUCell) else \
            f"RNN_{str(like.nonlinearity).upper()}"
        self.cell, self.with_memory, self.hidden_size = CELLS[mode], mode == "LSTM", like.hidden_size

    def forward(self, x: Tensor, state: Any = None) -> Any:
        if x.dim() != 2:
            raise ModelError("a recurrent cell takes inputs with a batch dimension, as a matrix")
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        given: State = (zeros, zeros) if state is None else state if self.with_memory else (state,)
        from_input, from_hidden = (F.linear(getattr(self, f"{site}_quantizer")(value), self._matrix(f"weight_{kind}"),
                                            getattr(self, f"bias_{kind}", None))
                                   for site, kind, value in (("input", "ih", x), ("hidden", "hh", given[0])))
        after = self.cell(from_input, from_hidden, given)
        return after if self.with_memory else after[0]

    def _matrix(self, name: str) -> Tensor:
        matrix: Tensor = getattr(self, f"{name}_quantizer")(getattr(self, name))
        return matrix
