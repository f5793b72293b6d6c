"""One thread for all tests: the models are tiny, and on a busy machine threads wait for each other."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
