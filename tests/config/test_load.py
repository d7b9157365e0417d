"""Loading, overriding, refusing, explaining."""

from pathlib import Path

import msgspec
import pytest
import yaml

from freerun.config.load import knobs, load_config
from freerun.config.text import dump
from freerun.core import ConfigError
from freerun.train.corrections import DistanceMask, IcePop

BASE = ["model.path=m", "data.source=d.jsonl"]


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*BASE, *overrides])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_file_then_overrides(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: {path: m}\ndata: {source: d.jsonl}\ntrain: {lr: 1e-3, minibatches: 2}\n")
    config, origins = load_config(file, ["train.lr=3e-4", "control.max_staleness=0", "rollout.stop=[x, y]"])
    assert config.train.lr == 3e-4
    assert config.train.minibatches == 2
    assert config.control.max_staleness == 0
    assert config.rollout.stop == ("x", "y")
    assert origins["train.lr"] == "command line"
    assert origins["train.minibatches"] == "a.yaml"


def test_dump_reads_back_and_says_where_values_came_from(tmp_path: Path) -> None:
    config, origins = load_config(None, [*BASE, "train.lr=3e-4", "data.options={a: 1}"])
    text = dump(config, origins)
    assert "lr: 0.0003  # command line" in text
    assert "temperature: 1.0  # default" in text
    (tmp_path / "c.yaml").write_text(text)
    assert load_config(tmp_path / "c.yaml")[0] == config
    assert yaml.safe_load(text)["data"]["options"] == {"a": 1}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.lrr=1", "unknown key train.lrr; did you mean train.lr?"),
        ("max_stalenes=1", "did you mean control.max_staleness?"),
        ("trian.lr=1", "did you mean train?"),
        ("train.lr=-1", "train.lr: Input should be greater than 0"),
        ("control.when_stale=cry", "'wait', 'mask' or 'drop'"),
        ("rollout.group_size=1", "each answer is compared with itself"),
        ("train.minibatches=100000", "a batch has only"),
        ("evaluate.every=5", "add held_out.source"),
        ("sft.until=0.5", "add held_out.source"),
        ("name=a/b", "name:"),
        ("oops", "KEY=VALUE"),
        ("reward.judge=[math", "'reward.judge=[math': the value is not YAML; quote it"),
        ("data.prompt_key=@x", "the value is not YAML"),
        ("train=5", "train: Input should be a valid dictionary"),
        ("preset=areal-1.5b-maths", "there is no preset areal-1.5b-maths; did you mean areal-1.5b-math?"),
        ("preset=qqq", "there is no preset qqq; there are areal-1.5b-math, "),
        ("resources.machines=3", "resources.machines is 3, but launcher is local: set launcher=nodes"),
        ("reward.where=machines", "launcher is local, so there is only this one"),
        ("cluster.listen=here", "cluster.listen: it must be HOST:PORT"),
        ("cluster.listen=0.0.0.0:99999", "cluster.listen: it must be HOST:PORT"),
        ("engine.tensor_parallel=2", "the embedded engine is on one GPU: set engine.kind=vllm"),
        ("engine.python=python3", "engine.python is the Python of vLLM or SGLang"),
        ("engine={kind: vllm, on_update: auto}", "engine.on_update is auto, which vllm cannot do for single answers"),
        ("engine={kind: vllm, urls: [a:1]}", "'a:1' is no URL of an engine"),
        ("engine={kind: vllm, urls: [http://a:1, http://a:1]}", "names an engine twice"),
        ("engine={kind: vllm, urls: [http://a:1], tensor_parallel: 2}", "engine.tensor_parallel is for engines that"),
        ("engine={weights: fp8, urls: [http://a:1]}", "engine.weights is for engines that the run starts"),
        ("engine={kind: vllm, weights: fp8}", "engine.weights=fp8 is for the embedded engine, and engine.kind is vllm"),
        ("weights.way=files", "set weights.folder"),
        ("weights.folder=/x", "weights.folder is for weights.way=files"),
    ],
)
def test_mistakes_get_one_line(override: str, says: str) -> None:
    assert says in refused(override)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["resources={machines: 3, gpus: 2}"], "resources.gpus is 2, fewer than resources.machines=3"),
        (["resources.machines=2", "weights.way=shm"], "which stays within a machine"),
        (["engine.weights=fp8", "train.lora.rank=4"], "engine.weights=fp8 and train.lora do not go together"),
        (["engine={kind: vllm, urls: [http://a:1]}", "resources.engines=2"], "resources.engines is for engines that"),
    ],
)
def test_mistakes_of_several_machines_get_one_line(overrides: list[str], says: str) -> None:
    assert says in refused("launcher=nodes", *overrides)


def test_missing_keys_and_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model is missing"):
        load_config(None, ["data.source=x"])
    with pytest.raises(ConfigError, match="there is no file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="keys and values"):
        load_config(tmp_path / "list.yaml")


def test_an_empty_section_is_all_defaults(tmp_path: Path) -> None:
    """Everything below it commented out, say."""
    file = tmp_path / "a.yaml"
    file.write_text("model: {path: m}\ndata: {source: d.jsonl}\ntrain:\nrollout:\nheld_out:\n")
    given = load_config(file)[0]
    assert given == load_config(None, BASE)[0]
    assert load_config(file, ["train.objective=dapo"])[0].train.overlong_share == 0.2
    file.write_text("model: {path: m}\ndata: {source: d.jsonl}\ntrain: {lr: 2e-5, kl: }\n")
    assert load_config(file)[0] == given
    (tmp_path / "b.yaml").write_text("model:\ndata: {source: d.jsonl}\n")
    with pytest.raises(ConfigError, match="model"):
        load_config(tmp_path / "b.yaml")


def test_what_goes_to_other_processes_is_what_was_set() -> None:
    """Infinite numbers are lost in JSON, if one lets them."""
    given = [
        "train.clip.high=.inf",
        "train.clip_grad=.inf",
        "train.corrections=[{name: icepop, low: 0.2, high: .inf}, distance]",
    ]
    train = load_config(None, [*BASE, *given])[0].train
    assert train.clip.high == float("inf")
    assert train.corrections == (IcePop(low=0.2, high=float("inf")), DistanceMask())
    sent = msgspec.json.decode(msgspec.json.encode(train.plain()))
    assert type(train).model_validate(sent) == train


def test_every_knob_is_explained_and_there_are_few() -> None:
    """Every leaf of the tree counts, and every option of every correction; `held_out` counts as one, since it has the
    keys of `data`. The options of a judge or a dataset are their own, and are not counted."""
    every = list(knobs())
    assert all(help.endswith(".") and len(help) > 8 for _, help, _ in every), "each has one line of help"
    assert len({key for key, _, _ in every}) == len(every) <= 129
    assert {"train.kl.coef", "train.corrections", "train.corrections[icepop].low"} <= {key for key, _, _ in every}


def test_nested_options_are_overridden_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: {path: m}\ndata: {source: d.jsonl}\ntrain: {kl: {coef: 0.1, estimator: k2}}\n")
    config, origins = load_config(file, ["train.kl.coef=0.01", "train.lora.rank=16"])
    assert (config.train.kl.coef, config.train.kl.estimator, config.train.lora.rank) == (0.01, "k2", 16)
    assert (origins["train.kl.coef"], origins["train.kl.estimator"]) == ("command line", "a.yaml")
    assert "did you mean train.kl.coef?" in refused("train.kl.coeff=1")
    assert "train.corrections.0.icepop: low and high should lie around 1" in refused(
        "train.corrections=[{name: icepop, low: 2}]"
    )


def test_an_objective_brings_what_it_needs_from_other_rooms() -> None:
    given = ["model.path=m", "data.source=d.jsonl", "train.objective=dapo"]
    config, origins = load_config(None, given)
    assert config.control.drop_no_signal
    assert (config.train.overlong_share, config.train.clip.high) == (0.2, 0.28)
    assert origins["control.drop_no_signal"] == origins["train.clip.high"] == "train.objective"
    assert "high: 0.28  # train.objective" in dump(config, origins)
    config, origins = load_config(None, [*given, "control.drop_no_signal=false", "train.overlong_share=0.1"])
    assert not config.control.drop_no_signal
    assert config.train.overlong_share == 0.1
    assert origins["train.overlong_share"] == "command line"
    for advantages in ("batch", "gae"):
        assert not load_config(None, [*given, f"train.advantages={advantages}"])[0].control.drop_no_signal


@pytest.mark.parametrize(
    "advantages", ["train.advantages=batch", "train.advantages=gae", "train.objective=reinforce_pp"]
)
def test_equal_rewards_are_not_dropped_where_they_teach(advantages: str) -> None:
    assert "which do teach where answers are compared with the entire batch" in refused(
        advantages, "control.drop_no_signal=true"
    )
