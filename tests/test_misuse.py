"""Misuse from Python: one line that names the problem and the fix, and never a traceback out of torch or numpy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anybit
from anybit.errors import AnybitError

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = np.arange(24) % 3
CLIENTS = [(X[i:i + 6], Y[i:i + 6]) for i in range(0, 24, 6)]
DATASET = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)  # by chance one of a hundred learns, and loses it at 4 bits: another error
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


def fit(**given: Any) -> anybit.Fitted:
    return anybit.fit(**{"model": net(), "clients": CLIENTS, "test": (X, Y), "rounds": 1, "cohort": 2, **given})


def fit_cnn(clients: tuple[int, ...], test: tuple[int, ...], channels: int = 3, **given: Any) -> anybit.Fitted:
    model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    x, other = (np.zeros((24, *shape), np.float32) for shape in (clients, test))
    return fit(model=model, clients=[(x, Y)], test=(other, Y), cohort=1, **given)


def evaluate(**given: Any) -> Any:
    return anybit.evaluate(**{"model": net(), "test": (X, Y), "widths": ["FP32", "W4"], **given})


def export(**given: Any) -> Any:
    return fit().export(**{"out": "nowhere", "widths": ["W4"], **given})


def with_nan() -> np.ndarray:
    x = X.copy()
    x[3, 1] = np.nan
    return x


class Keeps(nn.Sequential):
    """A model that keeps an activation, called once."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


def called_once() -> nn.Module:
    model = Keeps(nn.Linear(4, 3))
    model(torch.zeros(1, 4))
    return model


def complex_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3, dtype=torch.complex64))


def unlabelled() -> tuple[np.ndarray, np.ndarray]:
    """Two labels per example, of which the fourth example has none."""
    labels = np.repeat(Y[:, None], 2, axis=1)
    labels[1, 0] = labels[3] = -100
    return np.repeat(X[:, :, None], 2, axis=2), labels


def fit_labelled_positions() -> anybit.Fitted:
    x, y = unlabelled()
    return fit(model=nn.Sequential(nn.Conv1d(4, 3, 1)), clients=[(x, y)] * 4, test=(x, y))


def wrong(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) != targets).float()


class ByClass(nn.Sequential):
    """A network with an activation after what is of a class."""

    def __init__(self, kind: type[nn.Module], exactly: bool = False) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 3))
        self.kind, self.exactly = kind, exactly

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
            x = torch.relu(x) if (type(layer) is self.kind if self.exactly else isinstance(layer, self.kind)) else x
        return x


class Recurrent(nn.Sequential):
    """A network that takes the outputs of a GRU apart, if it is one."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)[0] if isinstance(layer, nn.GRU) else layer(x)
        return x[:, -1]


def fit_maps(**given: Any) -> anybit.Fitted:
    x, y = np.zeros((4, 1, 6, 6), np.float32), np.zeros((4, 6, 6), np.int64)
    return fit(model=nn.Sequential(nn.Conv2d(1, 3, 1)), clients=[(x, y)] * 2, test=(x, y), **given)


def fit_binary(targets: np.ndarray, **given: Any) -> anybit.Fitted:
    return fit(model=net(1), clients=[(X, targets)] * 2, test=(X, Y % 2), **{"loss": "bce_with_logits", **given})


def nan_of_zero(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.where(targets == 0, torch.nan, (outputs.argmax(1) == targets).float())


class Own(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


MISUSES: list[tuple[str, Callable[[], Any], str]] = [
    # models
    ("a class for a model", lambda: fit(model=nn.Linear), "model must be a torch.nn.Module"),
    ("a model in float64", lambda: fit(model=net().double()), "give model.float()"),
    ("a model that keeps an activation", lambda: fit(model=called_once()), "'last' (torch.nn.utils.weight_norm, or outputs"),
    ("complex weights", lambda: fit(model=complex_layer()), "parameter '0.weight' is complex"),
    ("whole numbers for floats", lambda: fit(clients=[(X.astype(int), Y)] * 2, test=(X.astype(int), Y)),
     "give x.astype('float32')"),
    ("a lazy layer", lambda: fit(model=nn.Sequential(nn.LazyLinear(3))), "run one batch through the model first"),
    ("no model", lambda: fit(model=None), "model must be a torch.nn.Module"),
    ("a function for a model", lambda: fit(model=lambda x: x), "model must be a torch.nn.Module"),
    ("a single layer", lambda: fit(model=nn.Linear(4, 3)), "wrap it, as in nn.Sequential"),
    ("nothing to quantize", lambda: fit(model=nn.Sequential(nn.Flatten())), "no conv or linear layer"),
    ("other inputs", lambda: fit(model=nn.Sequential(nn.Linear(5, 3))), "does not take inputs of shape (1, 4)"),
    ("code by its name", lambda: fit(loss="losses:own"), "import it, and give the function itself"),
    ("a file for a folder", lambda: fit(path="/dev/null/run"), "choose another folder with path=…"),
    ("channels last", lambda: fit_cnn((8, 8, 3), (8, 8, 3)), "channels last? give x.transpose(0, 3, 1, 2)"),
    ("channels last, normalized", lambda: fit_cnn((8, 8, 3), (8, 8, 3), pipeline=anybit.Pipeline((0.5,) * 3, (0.2,) * 3)),
     "channels last? give x.transpose(0, 3, 1, 2)"),
    ("a pipeline of other channels", lambda: fit(
        model=nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), clients=[(X.reshape(6, 1, 4, 4), Y[:6])] * 4,
        test=(X.reshape(6, 1, 4, 4), Y[:6]), pipeline=anybit.Pipeline((0.5,) * 3, (0.2,) * 3)), "does not take inputs of"),
    ("no channel", lambda: fit_cnn((8, 8), (8, 8), 1), "no channel? give x[:, None]"),
    ("a test set of another shape", lambda: fit_cnn((3, 8, 8), (1, 8, 8)),
     "test inputs have shape (1, 8, 8), the clients' have (3, 8, 8)"),
    ("BatchNorm in training", lambda: fit(model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), "replace_batchnorm"),
    ("a layer with its own code", lambda: fit(model=nn.Sequential(Own(4, 3))), "name it in full_precision"),
    ("outputs without examples", lambda: fit(model=nn.Sequential(nn.Linear(4, 3), nn.Flatten(0))), "one whole-number label"),
    ("a class of its own", lambda: fit(model=ByClass(nn.Linear, exactly=True)), "outputs with its layers replaced"),
    ("a kind of module", lambda: fit(model=ByClass(nn.Dropout)), "does forward look at the class of a layer"),
    ("a kind of module in evaluate", lambda: evaluate(model=ByClass(nn.Dropout)), "Go by its name or its place"),
    ("a kind of recurrence", lambda: fit(model=Recurrent(nn.GRU(4, 3, batch_first=True), nn.Linear(3, 3)),
                                         clients=[(X[:, None], Y)] * 2, test=(X[:, None], Y)),
     "takes inputs of shape (1, 1, 4) float32, but not with its layers replaced by those that round"),
    # data
    ("a flip of maps", lambda: fit_maps(pipeline=anybit.Pipeline(flip=True)), "the pipeline's flip would move the pixels"),
    ("a crop of maps", lambda: fit_maps(pipeline=anybit.Pipeline(crop=4, padding=1)), "crop and padding would move"),
    ("targets of 255", lambda: fit_binary(Y % 2 * 255), "client 0: example 1 has the target 255, but loss"),
    ("missing yes and no", lambda: fit_binary(Y - 1, loss="mse", metric="binary_accuracy"), "target -1, but metric"),
    ("sparse inputs", lambda: fit(clients=[(torch.from_numpy(X).to_sparse(), Y)] * 2), "sparse tensor: give a dense one"),
    ("owners that are missing", lambda: anybit.by_client(X, Y, np.where(Y, 1.0, np.nan)), "example 0 has no owner"),
    ("owners that are none", lambda: anybit.by_client(X, Y, ["a", None] * 12), "example 1 has no owner, its id is None"),
    ("owners of two kinds", lambda: anybit.by_client(X, Y, np.array(["a", 1] * 12, object)), "cannot be sorted"),
    ("no clients", lambda: fit(clients=[]), "clients is empty"),
    ("clients is none", lambda: fit(clients=None), "one (inputs, targets) pair per client"),
    ("one DataLoader", lambda: fit(clients=DataLoader(DATASET, 6)), "clients is one DataLoader, which is one client"),
    ("one pair", lambda: fit(clients=(X, Y)), "give a pair (inputs, targets)"),
    ("one array", lambda: fit(clients=X), "one (inputs, targets) pair per client"),
    ("inputs alone", lambda: fit(clients=[X, X]), "give a pair (inputs, targets)"),
    ("other lengths", lambda: fit(clients=[(X, Y[:5])]), "do not have the same length"),
    ("an empty client", lambda: fit(clients=[(X[:0], Y[:0])]), "no examples"),
    ("NaN", lambda: fit(clients=[(with_nan(), Y)]), "inputs of example 3 hold NaN"),
    ("text as labels", lambda: fit(clients=[(X, np.array(["cat"] * 24))]), "number"),
    ("text as inputs", lambda: fit(clients=[(np.array(["cat"] * 24), Y)]), "number"),
    ("ragged inputs", lambda: fit(clients=[([[1.0], [2.0, 3.0]], [0, 1])]), "client 0"),
    ("numbers as objects", lambda: fit(clients=[(X, Y.astype(object))] * 2), "as in .astype('int64')"),
    ("an example without a label", fit_labelled_positions, "test data: example 3 has no label, all are -100"),
    ("an empty test set", lambda: fit(test=(X[:0], Y[:0])), "test data has no examples: give it some"),
    ("objects", lambda: fit(clients=[(np.array([None] * 24), Y)]), "number"),
    ("complex inputs", lambda: fit(clients=[(X * 1j, Y)] * 2), "complex"),
    ("a label too large", lambda: fit(clients=[(X, Y), (X, Y + 1)]), "client 1: example 2 has label 3, but"),
    ("a label below zero", lambda: fit(test=(X, Y - 1)), "has label -1"),
    ("numbers for labels", lambda: fit(clients=[(X, Y + 0.5)] * 2), "pass your own loss"),
    ("clients of two shapes", lambda: fit(clients=[(X, Y), (X[:, :3], Y)]), "target of an example have shape (3,), ()"),
    ("bytes and floats", lambda: fit(clients=[(X, Y), (X.astype(np.uint8), Y)]), "give all in one type"),
    ("a test set in bytes", lambda: fit(test=(X.astype(np.uint8), Y)), "test data: input is uint8"),
    ("test is one tensor", lambda: fit(test=torch.zeros(3)), "give a pair (inputs, targets)"),
    ("no test", lambda: fit(test=None), "give a pair (inputs, targets)"),
    # settings
    ("no rounds", lambda: fit(rounds=0), "rounds"),
    ("half a round", lambda: fit(rounds=1.5), "rounds"),
    ("rounds in words", lambda: fit(rounds="ten"), "rounds"),
    ("a cohort too large", lambda: fit(cohort=9), "cohort"),
    ("a cohort of nobody", lambda: fit(cohort=0), "cohort"),
    ("a seed in words", lambda: fit(seed="one"), "seed"),
    ("an engine that is none", lambda: fit(engine="fast"), "engine"),
    ("a device that is none", lambda: fit(device="tpu"), "device"),
    ("a weighting that is none", lambda: fit(weighting="best"), "weighting"),
    ("options as a number", lambda: fit(client=0.1), "client"),
    ("a learning rate below zero", lambda: fit(client=anybit.ClientOptions(lr=-1)), "lr"),
    ("an optimizer that is none", lambda: fit(server=anybit.ServerOptions(optimizer="lion")), "optimizer"),
    ("bits that are none", lambda: fit(evaluation=anybit.EvaluationOptions(bits=(1,))), "bits"),
    ("a layer that is none", lambda: fit(sites=anybit.SiteOptions(full_precision=("9",))), "full_precision names '9'"),
    ("resume without a path", lambda: fit(resume=True), "needs path="),
    ("callbacks of another kind", lambda: fit(callbacks=[print]), "Callback"),
    ("one callback", lambda: fit(callbacks=anybit.CsvLogger("log.csv")), "give a list, callbacks=[…]"),
    ("a number for a path", lambda: fit(path=5), "path is a int: give the folder"),
    ("a std of 0", lambda: fit_cnn((3, 8, 8), (3, 8, 8), pipeline=anybit.Pipeline((0.5,) * 3, (0.0,) * 3)), "data.std"),
    ("words for a flip", lambda: anybit.Pipeline(flip="yes"), "data.flip = 'yes'"),  # type: ignore[arg-type]
    ("on_round that is none", lambda: fit(on_round=3), "on_round"),
    ("a pipeline of another kind", lambda: fit(pipeline=lambda x: x), "Pipeline"),
    ("a sampler without clients", lambda: fit(sampler=lambda *given: None), "the sampler gave the clients None in round 1"),
    ("a sampler of parts", lambda: fit(sampler=lambda *given: [0.5, 1.5]), "2 different whole numbers from 0 to 3"),
    ("a schedule without numbers", lambda: fit(schedule=lambda *given: None), "the schedule gave None in round 1"),
    # variants
    ("a variant by name", lambda: fit(variant="mqat"), "anybit.mqat()"),
    ("a variant not called", lambda: fit(variant=anybit.mqat), "anybit.mqat()"),
    ("mqat at 1 bit", lambda: anybit.mqat(bits=(1, 4)), "bits"),
    ("mqat at a number", lambda: anybit.mqat(bits=4), "bits"),
    ("mqat at nothing", lambda: anybit.mqat(bits=()), "bits"),
    ("mqat at other sites", lambda: anybit.mqat(sites="B"), "sites"),
    ("qat at 16 bits", lambda: anybit.qat(bits=16), "bits"),
    ("carousel at words", lambda: anybit.carousel(bits=("two",)), "bits"),
    ("dropout above 1", lambda: anybit.baseline(dropout=1.5), "dropout"),
    # loss and metric
    ("a loss by a wrong name", lambda: fit(loss="mean_square"), "unknown loss"),
    ("a module's mean loss", lambda: fit(loss=nn.CrossEntropyLoss()), "reduction='none'"),
    ("a metric that is not a number", lambda: fit(metric=nan_of_zero), "metric 'nan_of_zero' of "),
    ("a mean for a metric", lambda: fit(metric=lambda o, t: (o.argmax(1) == t).float().mean()), "without .mean()"),
    ("a loss without a gradient", lambda: fit(loss=wrong), "loss 'wrong' has no gradient"),
    ("accuracy of one output", lambda: fit(model=net(1), loss="mse", metric="accuracy"), "use metric 'binary_accuracy'"),
    ("a metric of another kind", lambda: fit(metric=3), "metric is a int"),
    # evaluate
    ("evaluate one tensor", lambda: evaluate(test=torch.zeros(3)), "give a pair (inputs, targets)"),
    ("evaluate no model", lambda: evaluate(model="net"), "model must be a torch.nn.Module"),
    ("a width that is a number", lambda: evaluate(widths=[4]), "W4"),
    ("widths as one text", lambda: evaluate(widths="W4"), "widths=['W4']"),
    ("a width of 9 bits", lambda: evaluate(widths=["W9"]), "2…8"),
    ("activations without calibration", lambda: evaluate(widths=["A4"]), "calibration="),
    ("calibration of other inputs", lambda: evaluate(widths=["A4"], calibration=X[:, :3]), "shape (1, 3)"),
    ("a step rule that is none", lambda: evaluate(steps="best"), "steps"),
    ("a table that is none", lambda: evaluate(steps="table", table={}), "StepTable"),
    ("labels too large in evaluate", lambda: evaluate(test=(X, Y + 1)), "allow 0…2"),
    ("other inputs in evaluate", lambda: evaluate(test=(X[:, :3], Y)), "does not take inputs of shape"),
    # export, runs
    ("export at a number", lambda: export(widths=[4]), "W4"),
    ("export to another runtime", lambda: export(runtime="tflite"), "onnx"),
    ("activations alone in an export", lambda: export(widths=["A4"]), "W8A4"),
    ("a run that is none", lambda: anybit.Run.load("nowhere"), "nowhere"),
    ("a run of another type", lambda: anybit.Run.load(3), "path"),
]


@pytest.mark.parametrize(("misuse", "fragment"), [pytest.param(call, text, id=name) for name, call, text in MISUSES])
def test_misuse(misuse: Callable[[], Any], fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AnybitError) as error:
        misuse()
    assert fragment in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_numbers_of_numpy_are_numbers_of_a_pipeline() -> None:
    given = anybit.Pipeline(np.full(3, 0.5), np.full(3, 0.2), np.int64(8), 0, np.bool_(True))  # type: ignore[arg-type]
    plain = anybit.Pipeline((0.5,) * 3, (0.2,) * 3, 8, 0, True)
    images = torch.arange(2 * 3 * 9 * 9).reshape(2, 3, 9, 9).to(torch.uint8)
    assert torch.allclose(given(images), plain(images))


def test_read_only_arrays_are_neither_copied_nor_warned_of(tmp_path: Path) -> None:
    """One of a file would else fill the memory; in a process of its own, because torch warns once."""
    code = ("import numpy as np; from anybit.data.examples import as_inputs; x = np.ones((4, 2), np.float32); "
            "x.flags.writeable = False; assert as_inputs(x, 'client 0').data_ptr() == x.ctypes.data")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_wrong_keyword_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="learning_rate"):
        fit(learning_rate=0.1)


class Padded(nn.Module):
    """A transformer that averages over padding, too: of which torch's own attention at rest makes zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 3)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embedding(ids), src_key_padding_mask=ids == 0).mean(1))
        return out


def test_what_only_looks_like_misuse_is_taken() -> None:
    """A view in reverse, attention over padding, and longer test examples than the clients' where the model takes both."""
    ids = np.tile([1, 2, 3, 0, 0], (24, 1))
    assert fit(model=Padded(), clients=[(ids, Y)] * 4, test=(ids, Y)).scores["FP32"].metric >= 0

    def positions(length: int) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((6, 4, length), np.float32)[::-1], np.zeros((6, length), np.int64)

    model = nn.Sequential(nn.Conv1d(4, 3, 1))
    assert fit(model=model, clients=[positions(5)] * 4, test=positions(7)).scores["FP32"].metric >= 0
    with pytest.raises(AnybitError, match=r"test data: example 0 has label 3"):
        fit(model=model, clients=[positions(5)] * 4, test=(positions(7)[0], positions(7)[1] + 3))
