"""pfl-research: python pfl_run.py MODEL THREADS [DEVICE], or under torchrun for several processes."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
import work

os.environ["PFL_PYTORCH_DEVICE"] = sys.argv[3] if len(sys.argv) > 3 else "cpu"

from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

DEVICE = os.environ["PFL_PYTORCH_DEVICE"]
LEADS = int(os.environ.get("RANK", "0")) == 0
trained = [0]


def module(name: str) -> Any:
    """The model with the two functions that pfl asks for."""
    model = work.torch_model(name).to(DEVICE)

    def loss(x: Any, y: Any, eval: bool = False) -> Any:
        trained[0] += len(y)
        return torch.nn.functional.cross_entropy(model(x), y)

    model.loss = loss
    model.metrics = lambda x, y, eval=False: {"loss": Weighted(0.0, 1)}
    return model


class Paced(TrainingProcessCallback):
    """Answers after a round and waits for the next; other ranks wait inside the next all-reduce."""

    timer, lines = work.Timer(), work.rounds()

    def wait(self) -> bool:
        stop = LEADS and next(self.lines, 1) == 1
        if "RANK" in os.environ:
            flag = torch.tensor([float(stop)])
            torch.distributed.all_reduce(flag)
            stop = bool(flag.item())
        self.timer.start()
        return bool(stop)

    def on_train_begin(self, *, model: Any) -> Any:
        self.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        samples = torch.tensor([float(trained[0])])
        if "RANK" in os.environ:
            torch.distributed.all_reduce(samples)
        trained[0] = 0
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        if LEADS:
            self.timer.done(int(samples.item()))
        return self.wait(), Metrics()


def main() -> None:
    torch.set_num_threads(int(sys.argv[2]))
    np.random.seed(1)
    x, y = (torch.from_numpy(a).to(DEVICE) for a in work.data())

    def user(i: int) -> Dataset:
        order = torch.randperm(work.IMAGES, device=DEVICE)
        return Dataset(raw_data=[x[i][order], y[i][order]])

    model = module(sys.argv[1])
    dataset = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(work.CLIENTS))))
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(central_num_iterations=10_000, evaluation_frequency=10_000_000, train_cohort_size=work.CLIENTS,
                          val_cohort_size=0),
        SimulatedBackend(dataset, dataset), wrapped,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.LR, local_batch_size=work.BATCH),
        callbacks=[Paced()], send_metrics_to_platform=False)


work.quiet()
main()
