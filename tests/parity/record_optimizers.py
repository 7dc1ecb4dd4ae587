#!/usr/bin/env python3
"""Records golden numbers of torch.optim optimizers and LR schedulers, in float64.

Writes golden/optimizers.json and golden/schedulers.json beside this file.

How to run (Python 3.11, no GPU needed; only needed to make the files anew):
    python3 -m venv /tmp/lvenv
    /tmp/lvenv/bin/pip install torch==2.15.0
    /tmp/lvenv/bin/python tests/parity/record_optimizers.py

Optimizer problem: two parameters, p0 of shape (3,) and p1 of shape (2,2) (listed row-major), one
parameter group. Before each step the gradient is set to g = a*p + b, element by element, with the
constants A and B below (they are also written into the JSON). No loss, no autograd.
Schedulers: one optimizer, one group. lr[i] is the learning rate in force at optimizer step i
(i = 0, 1, ...); scheduler.step() runs after each optimizer step. For a plateau scheduler metrics[i]
is passed to the scheduler.step(metrics[i]) that runs after optimizer step i, so lr[i+1] is the first one to feel it.
Numbers are written with repr(), which round-trips doubles.
"""
import inspect
import json
import os
import warnings

import torch
from torch.optim import lr_scheduler as lrs

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "golden")
STEPS = 20
SCHED_STEPS = 30

SHAPES = {"p0": [3], "p1": [2, 2]}
INITIAL = {"p0": [1.0, -2.0, 0.5], "p1": [0.25, -0.75, 1.5, 3.0]}
A = {"p0": [1.0, 0.5, 2.0], "p1": [0.75, 1.25, 0.3, 1.5]}
B = {"p0": [0.1, -0.2, 0.3], "p1": [-0.4, 0.5, 0.05, -1.0]}

# name, class, options given (everything else is the class's default; all of them are written to the JSON)
OPTIMIZERS = [
    ("sgd_plain", "SGD", dict(lr=0.1)),
    ("sgd_momentum", "SGD", dict(lr=0.05, momentum=0.9)),
    ("sgd_nesterov", "SGD", dict(lr=0.05, momentum=0.9, nesterov=True)),
    ("sgd_dampening", "SGD", dict(lr=0.1, momentum=0.8, dampening=0.25)),
    ("sgd_weight_decay", "SGD", dict(lr=0.1, weight_decay=0.05)),
    ("sgd_momentum_weight_decay", "SGD", dict(lr=0.05, momentum=0.9, weight_decay=0.01)),
    ("sgd_nesterov_weight_decay", "SGD", dict(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)),
    ("sgd_maximize", "SGD", dict(lr=0.02, maximize=True)),
    ("sgd_maximize_momentum_weight_decay", "SGD", dict(lr=0.01, momentum=0.9, weight_decay=0.1, maximize=True)),
    ("adam_plain", "Adam", dict(lr=0.1)),
    ("adam_betas_eps", "Adam", dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3)),
    ("adam_weight_decay", "Adam", dict(lr=0.1, weight_decay=0.1)),
    ("adam_amsgrad", "Adam", dict(lr=0.3, betas=(0.8, 0.7), amsgrad=True)),
    ("adam_maximize", "Adam", dict(lr=0.05, maximize=True)),
    ("adamw_plain", "AdamW", dict(lr=0.1)),
    ("adamw_weight_decay", "AdamW", dict(lr=0.1, weight_decay=0.1)),
    ("adamw_no_weight_decay", "AdamW", dict(lr=0.1, weight_decay=0.0)),
    ("adamw_amsgrad", "AdamW", dict(lr=0.3, betas=(0.8, 0.7), amsgrad=True)),
    ("adamw_maximize", "AdamW", dict(lr=0.05, weight_decay=0.1, maximize=True)),
    ("adagrad_plain", "Adagrad", dict(lr=0.5)),
    ("adagrad_lr_decay", "Adagrad", dict(lr=0.5, lr_decay=0.1)),
    ("adagrad_weight_decay", "Adagrad", dict(lr=0.5, weight_decay=0.1)),
    ("adagrad_initial_accumulator", "Adagrad", dict(lr=0.5, initial_accumulator_value=0.5)),
    ("adagrad_maximize", "Adagrad", dict(lr=0.1, maximize=True)),
    ("rmsprop_plain", "RMSprop", dict(lr=0.05)),
    ("rmsprop_alpha_eps", "RMSprop", dict(lr=0.05, alpha=0.9, eps=1e-3)),
    ("rmsprop_momentum", "RMSprop", dict(lr=0.01, momentum=0.9)),
    ("rmsprop_centered", "RMSprop", dict(lr=0.01, alpha=0.9, eps=1e-2, centered=True)),
    ("rmsprop_centered_momentum", "RMSprop", dict(lr=0.01, alpha=0.9, eps=1e-2, momentum=0.5, centered=True)),
    ("rmsprop_weight_decay", "RMSprop", dict(lr=0.05, weight_decay=0.1)),
    ("rmsprop_maximize", "RMSprop", dict(lr=0.01, maximize=True)),
]
# Options that choose an implementation and do not change the numbers.
NOT_NUMERIC = {"params", "foreach", "fused", "capturable", "differentiable"}


def flat(t):
    return t.detach().reshape(-1).tolist()


def full_options(cls, given):
    opts = {}
    for name, par in inspect.signature(cls.__init__).parameters.items():
        if name in NOT_NUMERIC or name == "self":
            continue
        val = given.get(name, par.default)
        opts[name] = list(val) if isinstance(val, tuple) else val
    assert set(given) <= set(opts), (given, opts)
    return opts


def run_optimizer(cls, given):
    tens = lambda d, k: torch.tensor(d[k], dtype=torch.float64).reshape(SHAPES[k])
    params = {k: torch.nn.Parameter(tens(INITIAL, k)) for k in SHAPES}
    a, b = ({k: tens(d, k) for k in SHAPES} for d in (A, B))
    opt = cls(list(params.values()), foreach=False, **given)
    series = []
    for _ in range(STEPS):
        with torch.no_grad():
            for k, p in params.items():
                p.grad = a[k] * p + b[k]
        opt.step()
        series.append({k: flat(p) for k, p in params.items()})
    return series


def record_optimizers():
    cases = []
    for name, cls_name, given in OPTIMIZERS:
        cls = getattr(torch.optim, cls_name)
        cases.append({
            "name": name, "optimizer": cls_name, "options": full_options(cls, given), "steps": STEPS,
            "shapes": SHAPES, "initial": INITIAL, "gradient": "g = a*p + b", "a": A, "b": B,
            "after_each_step": run_optimizer(cls, given),
        })
    # Each case must differ from the others of its kind: otherwise its option had no effect.
    finals = {}
    for c in cases:
        key = (c["optimizer"], json.dumps(c["after_each_step"][-1]))
        assert key not in finals, f"{c['name']} equals {finals[key]}"
        finals[key] = c["name"]
    for k in ("Adam", "AdamW"):  # amsgrad's running maximum must matter
        given = dict(lr=0.3, betas=(0.8, 0.7))
        cls = getattr(torch.optim, k)
        assert run_optimizer(cls, given)[-1] != run_optimizer(cls, dict(given, amsgrad=True))[-1]
    return cases


# ---- schedulers -----------------------------------------------------------------------------------------------
LAMBDAS = {
    "0.95^t": lambda t: 0.95 ** t,
    "1/(1+0.1*t)": lambda t: 1.0 / (1.0 + 0.1 * t),
    "min(1,(t+1)/5)": lambda t: min(1.0, (t + 1) / 5.0),
}
METRICS = [1.0, 0.9, 0.8, 0.8, 0.79999, 0.8, 0.81, 0.7, 0.71, 0.72, 0.73, 0.74, 0.75, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6,
           0.6, 0.6, 0.6, 0.55, 0.56, 0.57, 0.58, 0.59, 0.5995, 0.6, 0.61]
ACCURACY = [0.1, 0.2, 0.2, 0.25, 0.25, 0.25, 0.25, 0.26, 0.2, 0.2, 0.2, 0.4, 0.4005, 0.401, 0.4015, 0.402, 0.5, 0.5,
            0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6]

FLAT = [1.0, 0.9, 0.8] + [0.7] * 27

# name, scheduler, base_lr, options [, optimizer class and options]
SGD = ("SGD", dict(momentum=0.9))
SCHEDULERS = [
    ("step_lr", "StepLR", 0.1, dict(step_size=4, gamma=0.5)),
    ("step_lr_every_step", "StepLR", 1.0, dict(step_size=1, gamma=0.9)),
    ("multistep_lr", "MultiStepLR", 0.1, dict(milestones=[3, 7, 7, 20], gamma=0.3)),
    ("exponential_lr", "ExponentialLR", 0.1, dict(gamma=0.85)),
    ("cosine_annealing_lr", "CosineAnnealingLR", 0.1, dict(T_max=29, eta_min=0.0)),
    ("cosine_annealing_lr_eta_min_past_end", "CosineAnnealingLR", 0.1, dict(T_max=10, eta_min=0.01)),
    ("linear_lr", "LinearLR", 0.1, dict(start_factor=0.1, end_factor=1.0, total_iters=8)),
    ("linear_lr_down", "LinearLR", 0.1, dict(start_factor=1.0, end_factor=0.2, total_iters=12)),
    ("constant_lr", "ConstantLR", 0.1, dict(factor=0.25, total_iters=6)),
    ("polynomial_lr", "PolynomialLR", 0.1, dict(total_iters=20, power=2.0)),
    ("one_cycle_cos", "OneCycleLR", 0.1, dict(max_lr=1.0, total_steps=30)),
    ("one_cycle_linear", "OneCycleLR", 0.1, dict(max_lr=0.5, total_steps=30, pct_start=0.4, anneal_strategy="linear",
                                                 base_momentum=0.8, max_momentum=0.9, div_factor=10.0,
                                                 final_div_factor=100.0)),
    ("one_cycle_three_phase", "OneCycleLR", 0.1, dict(max_lr=1.0, total_steps=30, pct_start=0.25, three_phase=True)),
    ("one_cycle_epochs", "OneCycleLR", 0.1, dict(max_lr=1.0, epochs=5, steps_per_epoch=6)),
    ("one_cycle_no_momentum", "OneCycleLR", 0.1, dict(max_lr=1.0, total_steps=30, cycle_momentum=False),
     ("SGD", dict(momentum=0.0))),
    ("one_cycle_adam", "OneCycleLR", 0.1, dict(max_lr=0.01, total_steps=30), ("Adam", dict(betas=(0.9, 0.999)))),
    ("lambda_lr_power", "LambdaLR", 0.1, dict(lr_lambda="0.95^t")),
    ("lambda_lr_inverse_time", "LambdaLR", 0.1, dict(lr_lambda="1/(1+0.1*t)")),
    ("lambda_lr_warmup", "LambdaLR", 0.1, dict(lr_lambda="min(1,(t+1)/5)")),
    ("multiplicative_lr", "MultiplicativeLR", 0.1, dict(lr_lambda="1/(1+0.1*t)")),
    ("sequential_linear_cosine", "SequentialLR", 0.1, dict(milestones=[5], schedulers=[
        ("LinearLR", dict(start_factor=0.1, end_factor=1.0, total_iters=5)),
        ("CosineAnnealingLR", dict(T_max=24, eta_min=0.0))])),
    ("sequential_constant_exponential_step", "SequentialLR", 0.1, dict(milestones=[4, 14], schedulers=[
        ("ConstantLR", dict(factor=0.5, total_iters=4)),
        ("ExponentialLR", dict(gamma=0.9)),
        ("StepLR", dict(step_size=3, gamma=0.5))])),
    ("chained_linear_exponential", "ChainedScheduler", 0.1, dict(schedulers=[
        ("LinearLR", dict(start_factor=0.1, end_factor=1.0, total_iters=6)),
        ("ExponentialLR", dict(gamma=0.9))])),
    ("chained_constant_step", "ChainedScheduler", 0.1, dict(schedulers=[
        ("ConstantLR", dict(factor=0.1, total_iters=3)),
        ("StepLR", dict(step_size=5, gamma=0.5))])),
    ("plateau_defaults", "ReduceLROnPlateau", 0.1, dict()),
    ("plateau_min_rel", "ReduceLROnPlateau", 0.1, dict(mode="min", factor=0.5, patience=2)),
    ("plateau_min_rel_threshold", "ReduceLROnPlateau", 0.1, dict(factor=0.5, patience=1, threshold=0.05)),
    ("plateau_min_abs_threshold", "ReduceLROnPlateau", 0.1, dict(factor=0.5, patience=1, threshold=0.05,
                                                                 threshold_mode="abs")),
    ("plateau_cooldown", "ReduceLROnPlateau", 0.1, dict(factor=0.5, patience=1, cooldown=3)),
    ("plateau_min_lr", "ReduceLROnPlateau", 0.1, dict(factor=0.1, patience=0, min_lr=0.002)),
    ("plateau_eps", "ReduceLROnPlateau", 0.1, dict(factor=0.5, patience=0, eps=0.01)),
    ("plateau_max_rel", "ReduceLROnPlateau", 0.1, dict(mode="max", factor=0.5, patience=2, threshold=0.01)),
    ("plateau_max_abs", "ReduceLROnPlateau", 0.1, dict(mode="max", factor=0.5, patience=2, threshold=0.001,
                                                       threshold_mode="abs")),
]
OPT_PARAMS = {"optimizer", "self", "last_epoch", "schedulers"}


def build_scheduler(opt, name, given):
    cls = getattr(lrs, name)
    if "schedulers" in given:
        children = [build_scheduler(opt, n, o) for n, o in given["schedulers"]]
        if name == "SequentialLR":
            return cls(opt, children, milestones=given["milestones"])
        return cls(children, optimizer=opt)
    kw = dict(given)
    if "lr_lambda" in kw:
        kw["lr_lambda"] = LAMBDAS[kw["lr_lambda"]]
    return cls(opt, **kw)


def scheduler_options(name, given):
    cls = getattr(lrs, name)
    opts = {}
    if "schedulers" in given:
        opts["schedulers"] = [{"scheduler": n, "options": scheduler_options(n, o)} for n, o in given["schedulers"]]
    for pname, par in inspect.signature(cls.__init__).parameters.items():
        if pname in OPT_PARAMS:
            continue
        opts[pname] = given.get(pname, par.default)
    return opts


def record_schedulers():
    cases = []
    for name, sched, base_lr, given, *rest in SCHEDULERS:
        opt_name, opt_opts = rest[0] if rest else SGD
        p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = getattr(torch.optim, opt_name)([p], lr=base_lr, **opt_opts)
        sch = build_scheduler(opt, sched, given)
        plateau = sched == "ReduceLROnPlateau"
        metrics = ACCURACY if given.get("mode") == "max" else METRICS if given else FLAT
        has_mom = sched == "OneCycleLR" and given.get("cycle_momentum", True)
        lr, mom = [], []
        for i in range(SCHED_STEPS):
            g = opt.param_groups[0]
            lr.append(float(g["lr"]))
            mom.append(float(g["betas"][0] if opt_name == "Adam" else g["momentum"]))
            p.grad = torch.zeros_like(p)
            opt.step()
            sch.step(metrics[i]) if plateau else sch.step()
        case = {"name": name, "scheduler": sched, "base_lr": base_lr, "options": scheduler_options(sched, given),
                "optimizer": opt_name, "optimizer_options": {k: list(v) if isinstance(v, tuple) else v
                                                             for k, v in opt_opts.items()}, "lr": lr}
        if has_mom:
            case["momentum"] = mom
        if plateau:
            case["metrics"] = metrics
        cases.append(case)
    return cases


def dump(path, note, cases):
    """One case per block; a list of numbers, and a step's dictionary, stays on one line."""
    with open(path, "w") as f:
        f.write('{\n"note": %s,\n"torch": %s,\n"cases": [\n' % (json.dumps(note), json.dumps(torch.__version__)))
        for i, case in enumerate(cases):
            f.write("{")
            for j, (k, v) in enumerate(case.items()):
                f.write(",\n " if j else "\n ")
                if k == "after_each_step":
                    f.write('"%s": [\n  ' % k + ",\n  ".join(json.dumps(s) for s in v) + "\n ]")
                else:
                    f.write("%s: %s" % (json.dumps(k), json.dumps(v, allow_nan=False)))
            f.write("\n}" + (",\n" if i + 1 < len(cases) else "\n"))
        f.write("]\n}\n")
    json.load(open(path))
    print(path, len(cases), "cases")


def main():
    os.makedirs(OUT, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dump(os.path.join(OUT, "optimizers.json"),
         "Made by record_optimizers.py; float64; p1 is row-major; gradient set before each step.", record_optimizers())
    dump(os.path.join(OUT, "schedulers.json"),
         "Made by record_optimizers.py; lr[i] is used at optimizer step i; scheduler.step() after each step, "
         "with metrics[i] if plateau; momentum is beta1 for Adam.", record_schedulers())


if __name__ == "__main__":
    main()
