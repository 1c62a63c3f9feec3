"""What goes into a model: one tensor, several by position or by name, whole numbers and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.config import ClientOptions, Config
from anybit.data.examples import Data, Examples, Pipeline, as_examples, as_inputs
from anybit.errors import DataError, ModelError
from anybit.federated.cohort import build_cohort
from anybit.federated.variants import mqat
from anybit.inputs import Inputs, floats_to, leaves
from anybit.quant.grid import Width
from anybit.tensors import picked
from anybit.training.task import Task
from tests.gathered import ENGINES, deltas_of
from tests.trainings import begun

SIZES = [1, 9, 4, 6]
FAST: dict[str, Any] = {"rounds": 2, "cohort": 2, "client": anybit.ClientOptions(lr=0.1, batch_size=4),
                        "server": anybit.ServerOptions(lr=0.05)}


class Two(nn.Module):
    """Token ids and numbers beside them; the answer stands in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.side, self.head = nn.Embedding(7, 6), nn.Linear(3, 6), nn.Linear(6, 4)

    def forward(self, ids: Tensor, side: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.embed(ids).mean(1) + self.side(side))
        return {"hidden": hidden, "logits": self.head(hidden)}


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).mean(1))  # type: ignore[no-any-return]


def arrays(total: int, form: str) -> tuple[Any, np.ndarray]:
    draw = np.random.default_rng(0)
    ids, side = draw.integers(7, size=(total, 5)).astype(np.int32), draw.normal(size=(total, 3))
    inputs = {"tuple": (ids, side), "dict": {"side": side, "ids": ids}, "tokens": ids}[form]
    return inputs, draw.integers(3, size=total)


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_engines_agree_on_a_model_with_two_inputs(form: str) -> None:
    torch.manual_seed(3)
    whole = as_examples(*arrays(sum(SIZES), form), "train")
    examples = Examples(floats_to(whole.x, torch.float64), whole.y)
    split = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    config = Config(cohort=len(SIZES), client=ClientOptions(lr=0.1, batch_size=4, epochs=2))
    run = begun(Task(Two().double(), mqat(sites="WA"), Data(examples, examples), split), config)
    widths = [Width(2, 2), Width(4, 8), Width(3, 32), Width(32, 32)]
    cohort = build_cohort(1, 3, range(len(SIZES)), widths, split, ClientOptions(batch_size=4, epochs=2))
    results = {name: deltas_of(engine, run, cohort) for name, engine in ENGINES.items()}
    reference, losses = results.pop("sequential")
    assert all(float(delta.abs().amax()) > 0 for delta in reference.values())
    for engine, (deltas, other) in results.items():
        assert torch.allclose(losses, other.to(losses.dtype), atol=1e-6), engine
        assert all(torch.allclose(delta, deltas[name], atol=1e-9) for name, delta in reference.items()), engine


def test_a_token_classifier_is_evaluated_as_by_hand() -> None:
    ids, y = arrays(20, "tokens")
    clients = [(ids[i:i + 5], y[i:i + 5]) for i in range(0, 15, 5)]
    fitted = anybit.fit(Tokens(), clients, (ids[15:], y[15:]), **FAST)
    with torch.no_grad():
        outputs = fitted.model(torch.from_numpy(ids[15:]).long())
    targets = torch.from_numpy(y[15:])
    loss = float(nn.functional.cross_entropy(outputs, targets))
    right = 100 * float((outputs.argmax(1) == targets).double().mean())
    assert fitted.scores["FP32"] == pytest.approx((loss, right))
    assert anybit.evaluate(fitted.model, (ids[15:], y[15:]), ["FP32"])["FP32"] == pytest.approx((loss, right))


def test_own_loss_and_metric_see_fractions_of_outputs_on_whole_numbers() -> None:
    """A cast of the outputs to the inputs' type would leave 0 of 0.3."""
    class Third(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(2, 1), nn.Linear(1, 1, bias=False)
            self.embed.weight.data, self.head.weight.data = torch.ones(2, 1), torch.full((1, 1), 0.3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embed(ids))[:, 0]  # type: ignore[no-any-return]

    def distance(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs()

    test = (np.array([0, 1, 1]), np.array([0.0, 1.0, 1.0]))
    score = anybit.evaluate(Third(), test, ["FP32"], loss=distance, metric=distance)["FP32"]
    assert score.metric == pytest.approx((0.3 + 0.7 + 0.7) / 3)


def test_evaluation_of_several_inputs_with_quantized_activations() -> None:
    inputs, y = arrays(12, "dict")
    scores = anybit.evaluate(Two(), (inputs, y), ["FP32", "WA8", "WA2"], calibration=inputs)
    assert scores["WA8"].loss == pytest.approx(scores["FP32"].loss, abs=0.05)
    assert scores["WA2"].loss != pytest.approx(scores["FP32"].loss, abs=1e-4)


@pytest.mark.parametrize(("given", "found"), [
    ([1, 2, 3], {"input": (torch.int64, (3,))}),
    ([np.zeros(2), np.ones(2), np.ones(2)], {"input": (torch.float32, (3, 2))}),
    ((np.zeros(2), np.ones(2), np.ones(2)), {"input": (torch.float32, (3, 2))}),
    ((np.zeros((3, 2)), np.ones(3, np.int16)), {"input_0": (torch.float32, (3, 2)), "input_1": (torch.int64, (3,))}),
    ([np.zeros((3, 2)), np.ones(3, bool)], {"input_0": (torch.float32, (3, 2)), "input_1": (torch.bool, (3,))}),
    ({"ids": [[1], [2], [3]]}, {"ids": (torch.int64, (3, 1))}),
    (np.zeros((3, 1, 2, 2), np.uint8), {"input": (torch.uint8, (3, 1, 2, 2))})])
def test_arrays_become_inputs(given: Any, found: dict[str, Any]) -> None:
    examples = as_examples(given, [0, 1, 2], "data")
    assert {name: (x.dtype, tuple(x.shape)) for name, x in leaves(examples.x).items()} == found
    assert len(examples) == 3


@pytest.mark.parametrize(("x", "y", "message"), [
    ((np.zeros((3, 2)), np.zeros((2, 2))), [0, 1, 2], r"\(2, 2\) 'input_1' and \(3,\) targets do not have the same length"),
    ({"a": np.zeros(3), "b": np.array([1, np.nan, 2])}, [0, 1, 2], "the 'b' of example 1 hold NaN"),
    ({"mask": np.ones((3, 2), np.uint8)}, [0, 1, 2], "'mask' is uint8 .* pixels or whole numbers"),
    ({}, [0], "a name and an array"),
    (np.zeros((3, 2)), ["a", "b", "c"], "the targets are not an array of numbers"),
    (np.zeros((3, 2)), {"a": 1}, "the targets are not an array of numbers"),
    ([[1, 2], [3]], [0, 1], "the inputs are not an array of numbers")])
def test_what_cannot_be_inputs_is_said_in_one_line(x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_examples(x, y, "data")


def test_only_images_of_several_inputs_pass_through_the_pipeline() -> None:
    image = np.arange(32, dtype=np.uint8).reshape(2, 1, 4, 4)
    inputs: Inputs = as_inputs({"image": image, "age": [[7.0], [8.0]], "ids": [[1], [2]]}, "data")
    pipeline = Pipeline((0.5,), (0.25,), crop=2)
    seen = pipeline(inputs)
    assert isinstance(seen, dict)
    assert torch.allclose(seen["image"], (torch.from_numpy(image[:, :, 1:3, 1:3]) / 255 - 0.5) / 0.25)
    assert seen["age"].tolist() == [[7.0], [8.0]]
    assert seen["ids"].tolist() == [[1], [2]]
    with pytest.raises(DataError, match="none of the inputs is one"):
        pipeline(picked({"ids": torch.ones(2, 1)}, slice(2)))


def test_bytes_among_floats_are_refused() -> None:
    bytes_, floats = np.zeros((6, 1, 4, 4), np.uint8), np.zeros((6, 1, 4, 4), np.float32)
    y, model = np.zeros(6, int), nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(DataError, match="client 1: input is float32, but that of client 0 is uint8"):
        anybit.fit(model, [(bytes_, y), (floats, y)], (bytes_, y))
    with pytest.raises(DataError, match="test data: input is float32, but that of the clients is uint8"):
        anybit.fit(model, [(bytes_, y)], (floats, y))
    with pytest.raises(DataError, match="client 1: its inputs are input_0, input_1, but those of client 0 are input"):
        anybit.fit(model, [(floats, y), ((floats, floats), y)], (floats, y))


def test_a_missing_argument_is_the_models_error() -> None:
    inputs, y = arrays(6, "tokens")
    with pytest.raises(ModelError, match=r"does not take inputs of shape \(1, 5\) int64 .*missing.*'side'"):
        anybit.fit(Two(), [(inputs, y)], (inputs, y), rounds=1, cohort=1)


def test_evaluate_wants_a_pair() -> None:
    with pytest.raises(DataError, match="test is a Tensor: give a pair"):
        anybit.evaluate(Tokens(), torch.zeros(3, 5))


@pytest.mark.parametrize("engine", ["sequential", "stacked", "auto"])
@pytest.mark.parametrize(("client", "place", "number"), [(2, (1, 3), 7), (0, (0, 0), -1)])
def test_a_number_without_a_row_in_its_embedding_is_named(engine: Any, client: int, place: tuple[int, int],
                                                          number: int) -> None:
    """Stacked, the 7 rows of client 3 lie behind those of client 2: its row 0 would be client 2's number 7."""
    draw = np.random.default_rng(0)
    clients = [(draw.integers(7, size=(6, 5)), draw.integers(3, size=6)) for _ in range(4)]
    test = draw.integers(7, size=(4, 5)), draw.integers(3, size=4)
    anybit.fit(Tokens(), clients, test, engine=engine, **FAST)
    clients[client][0][place] = number
    with pytest.raises(DataError, match=rf"^client {client}: example {place[0]} holds the number {number}, but embedding "
                                        r"'embed' has rows 0…6: replace it"):
        anybit.fit(Tokens(), clients, test, engine=engine, **FAST)


def test_numbers_of_several_inputs_and_of_the_test_set_are_looked_at() -> None:
    draw = np.random.default_rng(0)

    def part(ids: int) -> tuple[Any, np.ndarray]:
        x = {"ids": draw.integers(7, size=(6, 5)), "side": draw.normal(size=(6, 3)).astype(np.float32)}
        x["ids"][4, 2] = ids
        return x, draw.integers(4, size=6)

    with pytest.raises(DataError, match=r"^test data: example 4 holds the number 9, but embedding 'embed'"):
        anybit.fit(Two(), [part(1), part(2)], part(9), output="logits", **FAST)


def test_columns_that_go_into_embeddings_of_their_own_are_no_mistake() -> None:
    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item, self.head = nn.Embedding(3, 4), nn.Embedding(9, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.user(x[:, 0]) + self.item(x[:, 1]))  # type: ignore[no-any-return]

    draw = np.random.default_rng(0)
    part = np.stack([draw.integers(3, size=8), draw.integers(9, size=8)], 1), draw.integers(3, size=8)
    part[0][3, 1] = 8
    assert anybit.fit(Columns(), [part, part], part, **FAST).scores["W4"]
