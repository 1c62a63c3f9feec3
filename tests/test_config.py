from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anybit import recipes
from anybit.config import Component, Config, from_recipe
from anybit.errors import AnybitError, ConfigError
from anybit.schema import plain, read, read_arguments
from anybit.training.build import DATA, MODELS, SPLITS, VARIANTS, Components, build_task, settled


def test_config_survives_json() -> None:
    config = from_recipe("quickstart/mqat", ["sites.first_last_bits=8", "ranges.weights=mse"])
    assert read(Config, json.loads(json.dumps(plain(config)))) == config


def test_all_errors_at_once_each_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        read(Config, {"rounds": "many", "server": {"optimzer": "adam", "lr": "fast"}, "engine": "stackd", "cohrt": 3,
                      "evaluation": {"bits": [2, "x"]}})
    message = str(caught.value)
    for part in ("rounds = 'many': must be a whole number", "server.optimzer is unknown: did you mean 'optimizer'?",
                 "server.lr = 'fast': must be a number", "engine = 'stackd': must be one of", "did you mean 'stacked'?",
                 "cohrt is unknown: did you mean 'cohort'?", "evaluation.bits[1] = 'x'"):
        assert part in message


@pytest.mark.parametrize(("override", "message"), [
    ("rounds=0", "rounds = 0: must be at least 1"), ("client.lr=-1", "client.lr = -1"), ("server.lr=0", "server.lr = 0"),
    ("client.clip=0", "client.clip = 0"),
    ("evaluation.bits=[2,1]", "bits = 1"), ("sites.first_last_bits=16", "bits = 16"), ("seed=-1", "seed = -1"),
    ("rounds=true", "rounds = True"), ("server.eps=nan", "finite"), ("rounds", "write key=value"),
    ("data=3", "data = 3: must be a table"), ("device=1", "device = 1: must be text")])
def test_values_out_of_range(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_recipe("quickstart/mqat", [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(("override", "written"), [
    ("sites.full_precision=3", 'sites.full_precision=["3"]'),
    ("sites.full_precision=head,3", 'sites.full_precision=["head", "3"]'),
    ("evaluation.bits=4", "evaluation.bits=[4]"), ("evaluation.bits=2, 4", "evaluation.bits=[2, 4]"),
    ("evaluation.sites=W,A", 'evaluation.sites=["W", "A"]')])
def test_a_list_without_brackets_is_shown_as_it_can_be_read(override: str, written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_recipe("quickstart/mqat", [override])
    assert f"must be a list, written '{written}' (in the shell with these quotes)" in str(caught.value)
    assert from_recipe("quickstart/mqat", [written])


@pytest.mark.parametrize(("override", "message"), [
    ("evaluation.sites=3", "evaluation.sites = 3: must be a list, each item one of W, A, WA"),
    ("evaluation.sites=W,B", "evaluation.sites = 'W,B': must be a list, each item one of W, A, WA"),
    ("evaluation.bits=two,four", "evaluation.bits = 'two,four': must be a list"),
    ("sites.full_precision=true", "sites.full_precision = True: must be a list")])
def test_no_list_is_shown_that_could_not_be_read(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_recipe("quickstart/mqat", [override])
    assert str(caught.value) == message


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
                    max_leaves=10))
def test_no_plain_data_crashes_the_reader(value: object) -> None:
    with contextlib.suppress(ConfigError):
        read(Config, value)


@given(st.sampled_from(["rounds", "server", "client", "variant", "evaluation", "sites", "split"]),
       st.dictionaries(st.sampled_from(["lr", "bits", "name", "alpha", "every"]), st.integers() | st.text(max_size=4)))
def test_sections_with_odd_content_never_crash(section: str, value: object) -> None:
    with contextlib.suppress(ConfigError):
        read(Config, {section: value})


def test_every_recipe_is_valid() -> None:
    names = recipes.names()
    assert len([n for n in names if n.startswith("paper/")]) == 61
    for name in names:
        config = settled(from_recipe(name))
        read_arguments(DATA[config.data.name], config.data.arguments, "data")
        Components(config).build_variant()
        Components(config).build_model()
        assert config.split.name in SPLITS
        assert config.model.name in MODELS
        assert recipes.load(name)["description"]


def test_settled_writes_out_what_is_open() -> None:
    config = settled(Config())
    assert config.engine == "sequential"
    assert config.device == "cpu"
    assert config.variant.arguments["bits"] == [2, 3, 4, 6, 8, 32]
    assert settled(config) == config


def test_another_name_replaces_the_whole_table() -> None:
    config = from_recipe("paper/cifar10-resnet20/qat4-wa", ["variant.name=kure"])
    assert config.variant == Component("kure")
    kept = from_recipe("paper/cifar10-resnet20/qat4-wa", ["variant.bits=2"])
    assert kept.variant == Component("qat", {"bits": 2, "sites": "WA"})


def test_a_copied_recipe_means_the_same(tmp_path: Path) -> None:
    for name in ("quickstart/mqat", "paper/cifar100-resnet20/apqn2-a", "paper/femnist-lenet5/mqat"):
        path = tmp_path / "own.toml"
        path.write_text(recipes.as_toml(recipes.load(name)))
        assert from_recipe(str(path)) == from_recipe(name)


def test_a_recipe_may_extend_one_of_anybits_by_name(tmp_path: Path) -> None:
    """One of the same folder goes first; nothing outside of both can be named."""
    (tmp_path / "own.toml").write_text('extends = "paper/cifar10-resnet20/mqat"\nrounds = 7\n[variant]\nbits = [2, 8]\n')
    config, paper = from_recipe(str(tmp_path / "own.toml")), from_recipe("paper/cifar10-resnet20/mqat")
    assert (config.rounds, config.variant) == (7, Component("mqat", {"bits": [2, 8]}))
    assert (config.data, config.server, config.split) == (paper.data, paper.server, paper.split)
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart/mqat.toml").write_text("rounds = 3\n")
    (tmp_path / "near.toml").write_text('extends = "quickstart/mqat"\n')
    assert from_recipe(str(tmp_path / "near.toml")) == Config(rounds=3)
    for outside in ("../own", "/etc/own", "a/../../own"):
        (tmp_path / "out.toml").write_text(f'extends = "{outside}"\n')
        with pytest.raises(ConfigError, match="in the same folder or below it"):
            from_recipe(str(tmp_path / "out.toml"))


@pytest.mark.parametrize("name", [name for name in recipes.names() if "carousel" in name])
def test_carousel_recipes_differ_from_the_others_in_variant_and_following_alone(name: str) -> None:
    config = from_recipe(name)
    task, both = name.partition("/")[2].removesuffix("-wa"), name.endswith("-wa")
    folder = "quickstart" if task == "digits" else f"paper/{task}"
    other = from_recipe(name.replace("carousel", "mqat") if name.startswith(("demo/", "text/")) else f"{folder}/mqat")
    client = replace(other.client, clip=10.0) if both else other.client
    assert replace(config, variant=other.variant, ranges=other.ranges) == replace(other, client=client)
    assert replace(config.ranges, follow=None) == replace(other.ranges, follow=None)
    ranges, learned = settled(config).ranges, name == "carousel/cifar10-lenet5-wa"
    stay = name in ("carousel/cifar10-lenet5", "carousel/cifar10-resnet20-wa")
    assert (ranges.follow, ranges.learned) == (not stay, learned)
    listed = [2, 3, 4, 32] if learned else [2, 3, 4]
    assert config.variant == Component("carousel", {"sites": "WA", "activation_bits": listed} if both else {})
    assert settled(config).server.schedule == ("constant" if name.startswith("text/") else "linear")


def test_every_setting_of_the_paper_has_a_carousel_recipe() -> None:
    folders = {name.split("/")[1] for name in recipes.names() if name.startswith("paper/")}
    found = {name.split("/")[1] for name in recipes.names() if name.startswith("carousel/")}
    assert found == {*folders, "digits", "cifar10-lenet5-wa", "cifar10-resnet20-wa"}


def test_broken_recipe_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    (tmp_path / "loop.toml").write_text('extends = "loop"')
    (tmp_path / "lost.toml").write_text('extends = "nowhere"')
    for name, message in (("bad", "not valid TOML"), ("loop", "circle"), ("lost", "neither in its folder nor one of anybit"),
                          ("no", "not exist")):
        with pytest.raises(ConfigError, match=message):
            from_recipe(str(tmp_path / f"{name}.toml"))


def test_code_outside_anybit_needs_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(
        "import torch\n\ndef tiny(hidden: int = 4):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, hidden), torch.nn.Linear(hidden, 10))\n")
    monkeypatch.chdir(tmp_path)
    config = from_recipe("quickstart/mqat", ["model.name=my_models:tiny", "model.hidden=6"])
    with pytest.raises(ConfigError, match=r"allow it with trusted=\['my_models'\]"):
        build_task(config)
    assert build_task(config, ["my_models"]).model[1].out_features == 6  # type: ignore[index, union-attr]
    for name, message in (("my_models:huge", "has no 'huge'"), ("nowhere:x", "cannot be imported"),
                          ("my_models:torch", "cannot be called")):
        with pytest.raises(ConfigError, match=message):
            build_task(from_recipe("quickstart/mqat", [f"model.name={name}"]), ["my_models", "nowhere"])


@pytest.mark.parametrize(("override", "message"), [
    ("variant.name=mqta", "did you mean 'mqat'"), ("variant.bitz=3", "variant.bitz is unknown: did you mean 'bits'"),
    ("model.groups=few", "model.groups = 'few': must be a whole number"), ("model.groups=3", "model 'resnet20'"),
    ("split.clients=5000", "split.clients = 5000"), ("split.alpha=0", "split.alpha"), ("data.name=digit", "'digits'"),
    ("loss=mes", "unknown loss 'mes'"), ("variant.sites=WB", "variant.sites = 'WB'")])
def test_components_check_their_arguments(override: str, message: str) -> None:
    with pytest.raises(AnybitError) as caught:
        build_task(from_recipe("quickstart/mqat", [override]))
    assert message in str(caught.value)
    assert VARIANTS


@pytest.mark.parametrize(("override", "message"), [
    ("lr=0.1", "lr is unknown: did you mean 'client.lr' or 'server.lr'?"),
    ("compute.engine=stacked", "compute.engine is unknown: did you mean 'engine'?"),
    ("client.lrr=1", "client.lrr is unknown: did you mean 'lr'?"),
    ("fleet.engines=4", "fleet.engines is unknown: known: ")])
def test_a_setting_looked_for_in_the_wrong_place(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_recipe("quickstart/mqat", [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(("overrides", "lines"), [
    ([], []), (["split.alpha=0.5"], []), (["split.name=dirichlet"], []),
    (["split.name=iid"],
     ["split.name=iid starts from the settings of 'iid'; dropped from the recipe: clients = 20, alpha = 1.0"]),
    (["split.name=iid", "split.clients=7"],
     ["split.name=iid starts from the settings of 'iid'; dropped from the recipe: alpha = 1.0"]),
    (["split.clients=7", "split.name=iid"],
     ["split.name=iid starts from the settings of 'iid'; dropped from the recipe: clients = 20, alpha = 1.0"])])
def test_settings_that_another_name_leaves_behind_are_named(overrides: list[str], lines: list[str]) -> None:
    assert recipes.not_kept("quickstart/mqat", overrides) == lines
