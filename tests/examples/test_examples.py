"""Every example runs, small, and checks itself against eager."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types

import pytest

pytestmark = pytest.mark.filterwarnings("error:minicompile runs")

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    """Load an example by the number its file name starts with."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "comparison", raising=False)

    def example(number: str) -> types.ModuleType:
        (path,) = EXAMPLES.glob(f"{number}_*.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return example


def test_every_example_is_tested() -> None:
    numbers = {path.name[:2] for path in EXAMPLES.glob("[0-9][0-9]_*.py")}
    assert numbers == {"01", "02", "03", "04", "05", "06", "07", "08"}


def test_quickstart_prints_its_kernel(load, capsys) -> None:
    load("01").main()
    assert "@triton.jit" in capsys.readouterr().out


def test_gpt(load) -> None:
    from minicompile.demo.model import GPTConfig

    load("02").main(GPTConfig(context=16, width=32, layers=1, heads=2), batch=4, steps=5)


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_resnet18(load, seed: int) -> None:
    load("03").main(batch=4, size=64, width=4, seed=seed)


def test_transformer_encoder(load) -> None:
    load("04").main()


def test_huggingface_gpt2(load) -> None:
    pytest.importorskip("transformers")
    load("05").main()


def test_digits_train_to_above_95_percent(load) -> None:
    pytest.importorskip("sklearn")
    assert load("06").main(epochs=15) > 0.95


def test_graph_breaks_are_listed(load, capsys) -> None:
    load("07").main()
    assert "07_graph_breaks.py" in capsys.readouterr().out


def test_the_comparison_refuses_a_wrong_result(load) -> None:
    import torch

    load("01")
    import comparison

    exact = {"output": torch.ones(3, dtype=torch.float64)}
    wrong = {"output": torch.tensor([1.0, 1.0, 1.001])}
    with pytest.raises(AssertionError, match="output"):
        comparison.compare({"fp64": exact, "eager": {"output": torch.ones(3)}, "compiled": wrong})
    with pytest.raises(AssertionError, match="same outputs"):
        comparison.compare({"fp64": exact, "eager": {"output": torch.ones(3)}, "compiled": {}})


def test_explain_offers_a_rewrite_and_checks_itself(load, capsys, tmp_path) -> None:
    load("08").main(str(tmp_path / "report.html"))
    printed = capsys.readouterr().out
    assert "the break is gone and the outputs agree" in printed and "no difference" in printed
    assert (tmp_path / "report.html").stat().st_size > 10_000
