"""Random tests hold for any seed: INVATTN_TEST_SEED=7 pytest runs them with another."""

import os

import pytest
import torch

SEED = int(os.environ.get("INVATTN_TEST_SEED", "0"))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
