"""`scoreshield calibrate`: the least Gaussian noise for a contract."""

from __future__ import annotations

import json
from typing import Annotated

import typer

import scoreshield as ss
from scoreshield._types import Calibration
from scoreshield.cli.options import Delta, Epsilon, Json
from scoreshield.privacy import calibration as gaussian
from scoreshield.privacy.profiles import GaussianProfile
from scoreshield.privacy.verdicts import judge_profile

EXAMPLE = "scoreshield calibrate --epsilon 1 --delta 1e-6 --sensitivity 2"


def calibrate_command(
    epsilon: Epsilon,
    delta: Delta,
    sensitivity: Annotated[float, typer.Option(help="How far one neighbour moves the output, in l2; 2 for one query.")],
    method: Annotated[Calibration, typer.Option(help="The rule.")] = "analytic",
    as_json: Json = False,
) -> None:
    """Compute the least Gaussian noise for a contract, and the best attack against it."""
    scale = ss.calibrate(epsilon, delta, sensitivity, method)
    mu = sensitivity / scale
    facts = {
        "scale": scale,
        "epsilon": epsilon,
        "delta": delta,
        "sensitivity": sensitivity,
        "method": method,
        "delta_at_epsilon": gaussian.compute_delta(epsilon, mu),
        "attack_auc": gaussian.attack_auc(mu),
        "attack_advantage": gaussian.attack_advantage(mu),
        "verdict": judge_profile(GaussianProfile(mu)),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"scale (standard deviation)   {scale!r}")
    typer.echo(f"exact delta at this epsilon  {facts['delta_at_epsilon']:.6g} (asked: {delta:g})")
    typer.echo(f"best attack: AUC             {facts['attack_auc']:.6f} (0.5 is a coin toss)")
    typer.echo(f"best attack: advantage       {facts['attack_advantage']:.6f} (0 is a coin toss)")
    typer.echo(f"verdict                      {facts['verdict']}")
