"""A run of Python objects as the subject of an export: its data is not in its folder."""

from __future__ import annotations

import torch

from anybit.config import EvaluationOptions
from anybit.data.examples import Data, Examples
from anybit.export.subject import Subject
from anybit.federated.metrics import accuracy, cross_entropy
from anybit.federated.variants import mqat
from anybit.training.evaluation import Evaluator
from anybit.training.run import Run


def subject_of(run: Run) -> Subject:
    examples = Examples(torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))
    evaluator = Evaluator(run.model(), mqat(), run.config.sites, run.config.ranges, EvaluationOptions(),
                          Data(examples, examples), examples.x, cross_entropy, accuracy)
    return Subject(run.model().eval(), evaluator, run.steps(), "of the run", "tiny")
