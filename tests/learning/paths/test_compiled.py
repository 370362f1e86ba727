import numpy as np
import pytest
import torch

from incrowd.learning import ClientTensors
from incrowd.learning.paths.compiled import mostly_zero
from incrowd.learning.warm_up import main
from tests.learning.cohorts import clients


def test_machine_code_is_made_ahead_of_its_use(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert capsys.readouterr().out.startswith("compiled loops: ready after ")


def test_who_is_mostly_zero_is_decided_by_its_own_examples() -> None:
    alone = mostly_zero(clients([40, 0, 0], dead=0.8), 0.6)
    assert alone.tolist()[0]
    generator = np.random.default_rng(0)
    features = (generator.random((300, 10)) < np.repeat([0.3, 0.9, 0.5], 100)[:, None]).astype(np.uint8)
    data = ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.zeros(300, dtype=torch.int64),
        offsets=np.array([0, 100, 200, 300]),
        indices=np.arange(300),
    )
    assert mostly_zero(data, 0.6).tolist() == [True, False, False]
