from pathlib import Path

import pytest

from scripts.check_words import problems

HASH = "#"  # written apart from what follows, or the check would find its own examples


def problems_of(line: str, root: Path, *, folder: str = "incrowd") -> list[str]:
    (root / folder).mkdir()
    (root / folder / "thing.py").write_text(f"\n{line}\n")
    return problems(root)


@pytest.mark.parametrize(
    "line",
    [
        f"{HASH} TO" + "DO: later",
        f"{HASH} FIX" + "ME",
        f"x = 1  {HASH} noqa",
        f"x = 1  {HASH} noqa: S101",
        f"x = 1  {HASH} type: ignore[assignment]",
        f"x = 1  {HASH} type: ignore[arg-type]",
        f"x = 1  {HASH} type: ignore[assignment]  {HASH}",
        f"x = 1  {HASH} pragma: no cover",
        "except:",
        "    except Exception:",
        "    except (ValueError, Exception) as error:",
        "    except BaseException:",
        "pickle.load(file)",
        "model = torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.random.seed(0)",
        "noise = np.random.normal(size=3)",
        "torch.manual_seed(0)",
        "torch.cuda.manual_seed(0)",
        "import random",
        "    " + "<" * 7 + " HEAD",
        ">" * 7 + " main",
    ],
)
def test_a_forbidden_word_is_named_with_its_place(line: str, tmp_path: Path) -> None:
    (problem,) = problems_of(line, tmp_path)
    assert problem.startswith(f"incrowd/thing.py:2: {line.strip()!r}: ")
