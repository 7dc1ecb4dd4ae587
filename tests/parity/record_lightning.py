#!/usr/bin/env python3
"""Records golden hook-call sequences of PyTorch Lightning into golden/<case>.txt (see README.md for the grammar).

How to run (Python 3.11, CPU only; only needed to make the files anew):
    python3 -m venv /tmp/lvenv
    /tmp/lvenv/bin/pip install torch==2.15.0 lightning==2.6.6
    /tmp/lvenv/bin/python tests/parity/record_lightning.py            # all cases
    /tmp/lvenv/bin/python tests/parity/record_lightning.py normal     # some cases
The CUDA packages that torch depends on must be installed as well, or `import torch` fails.

Every case is one device, accelerator="cpu", logger=False, no progress bar, no model summary. Callbacks are one
ordinary recording callback ("callback") and one ModelCheckpoint subclass ("checkpoint").
"""
import logging
import os
import sys
import tempfile
import warnings

import torch
from torch.utils.data import DataLoader

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "golden")

EVENTS = []


def rec(who, hook, arg=None):
    EVENTS.append(f"{who}.{hook}" if arg is None else f"{who}.{hook}({arg})")


# ---- recorders ------------------------------------------------------------------------------------------------
def recording_method(base, who, name, arg=None):
    """A method that records its call, then does what the base class does. arg(*args, **kwargs) gives the text in ()."""
    def method(self, *args, **kwargs):
        rec(who, name, arg(*args, **kwargs) if arg else None)
        return getattr(base, name)(self, *args, **kwargs)
    method.__name__ = name
    return method


STAGE = lambda *a, stage=None, **k: str(getattr(stage or a[-1], "value", stage or a[-1]))
MODULE_PLAIN = """
    configure_callbacks prepare_data configure_model
    on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end
    on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end
    on_test_start on_test_end on_test_epoch_start on_test_epoch_end
    on_predict_start on_predict_end on_predict_epoch_start on_predict_epoch_end
    on_validation_model_eval on_validation_model_train on_validation_model_zero_grad
    on_test_model_eval on_test_model_train on_predict_model_eval
    on_before_zero_grad optimizer_zero_grad on_before_backward backward on_after_backward
    on_before_optimizer_step configure_gradient_clipping clip_gradients optimizer_step
    on_before_batch_transfer transfer_batch_to_device on_after_batch_transfer
    on_save_checkpoint on_load_checkpoint load_state_dict
""".split()
CALLBACK_PLAIN = """
    on_fit_start on_fit_end on_sanity_check_start on_sanity_check_end
    on_train_start on_train_end on_train_epoch_start on_train_epoch_end
    on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end
    on_test_start on_test_end on_test_epoch_start on_test_epoch_end
    on_predict_start on_predict_end on_predict_epoch_start on_predict_epoch_end
    on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step
    on_exception on_save_checkpoint on_load_checkpoint load_state_dict
""".split()
DATAMODULE_PLAIN = """
    prepare_data on_before_batch_transfer transfer_batch_to_device on_after_batch_transfer on_exception
""".split()


def batch_hooks(ns, base, who, lead):
    """on_<stage>_batch_start/end. `lead` is the number of arguments before batch / outputs."""
    def make(name, at):
        def pick(*args, **kwargs):
            return kwargs["batch_idx"] if "batch_idx" in kwargs else args[at]
        ns[name] = recording_method(base, who, name, pick)
    for stage in ("train", "validation", "test", "predict"):
        make(f"on_{stage}_batch_start", lead + 1)
        make(f"on_{stage}_batch_end", lead + 2)


def fill(base, who, plain, staged, batches, lead=0):
    ns = {name: recording_method(base, who, name) for name in plain}
    ns.update({name: recording_method(base, who, name, STAGE) for name in staged})
    if batches:
        batch_hooks(ns, base, who, lead)
    return ns


ModuleBase = type("ModuleBase", (pl.LightningModule,), fill(
    pl.LightningModule, "module", MODULE_PLAIN, ["setup", "teardown"], True))
CallbackBase = type("CallbackBase", (Callback,), fill(
    Callback, "callback", CALLBACK_PLAIN, ["setup", "teardown"], True, lead=2))
DataModuleBase = type("DataModuleBase", (pl.LightningDataModule,), fill(
    pl.LightningDataModule, "datamodule", DATAMODULE_PLAIN, ["setup", "teardown"], False))


class Recorder(CallbackBase):
    def __init__(self, case):
        self.case = case

    def state_dict(self):  # not recorded; must not be empty, or load_state_dict is never called
        return {"n": 1}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if batch_idx == self.case.get("stop_at"):
            trainer.should_stop = True


class Checkpoint(ModelCheckpoint):
    """Only the hooks that ModelCheckpoint itself overrides, and the writing and deleting of files."""

    def _save_checkpoint(self, trainer, filepath):
        super()._save_checkpoint(trainer, filepath)
        rec("checkpoint", "save")

    def _remove_checkpoint(self, trainer, filepath):
        super()._remove_checkpoint(trainer, filepath)
        rec("checkpoint", "remove")


for _name, _arg in [("setup", STAGE), ("on_train_start", None), ("on_train_batch_end", lambda t, m, o, b, i: i),
                    ("on_train_epoch_end", None), ("on_validation_end", None), ("on_exception", None),
                    ("on_train_end", None), ("load_state_dict", None)]:
    setattr(Checkpoint, _name, recording_method(ModelCheckpoint, "checkpoint", _name, _arg))


def loader(n):
    """n batches of 2 rows of 4 ones."""
    return DataLoader(torch.ones(2 * n, 4), batch_size=2, shuffle=False)


class Loaders:
    """Mixin: the four loader hooks, for the module and for the data module."""

    def train_dataloader(self):
        rec(self.who, "train_dataloader")
        return loader(self.case["train"])

    def val_dataloader(self):
        rec(self.who, "val_dataloader")
        v = self.case["val"]
        return [loader(n) for n in v] if isinstance(v, list) else loader(v)

    def test_dataloader(self):
        rec(self.who, "test_dataloader")
        return loader(self.case["val"])

    def predict_dataloader(self):
        rec(self.who, "predict_dataloader")
        return loader(self.case["val"])


def recording_scheduler(cls, *args, **kwargs):
    class Rec(cls):
        def load_state_dict(self, state):
            rec("scheduler", "load_state_dict")
            super().load_state_dict(state)
    Rec.__name__ = cls.__name__
    return Rec(*args, **kwargs)


class Module(Loaders, ModuleBase):
    who = "module"

    def __init__(self, case):
        super().__init__()
        self.case = case
        self.layer = None if case.get("build_in_configure_model") else torch.nn.Linear(4, 1)
        self.second = torch.nn.Linear(4, 1) if case.get("manual") == 2 else None
        self.automatic_optimization = not case.get("manual")

    def configure_model(self):
        super().configure_model()
        if self.layer is None:
            self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x)

    def loss(self, batch, layer=None):
        return ((layer or self.layer)(batch) ** 2).mean()

    def training_step(self, batch, batch_idx):
        rec("module", "training_step", batch_idx)
        if self.case.get("manual"):
            opts = self.optimizers()
            for opt, layer in zip(opts if isinstance(opts, list) else [opts], (self.layer, self.second)):
                opt.zero_grad()
                self.manual_backward(self.loss(batch, layer))
                opt.step()
            return None
        if batch_idx == self.case.get("raise_at"):
            raise RuntimeError("planned")
        if batch_idx == self.case.get("none_at"):
            return None
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_start(self, batch, batch_idx):
        super().on_train_batch_start(batch, batch_idx)
        return -1 if batch_idx == self.case.get("skip_at") else None

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        rec("module", "validation_step", batch_idx)
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, batch_idx):
        rec("module", "test_step", batch_idx)
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        rec("module", "predict_step", batch_idx)
        return self(batch)

    def lr_scheduler_step(self, scheduler, metric):
        rec("module", "lr_scheduler_step")
        super().lr_scheduler_step(scheduler, metric)
        rec("scheduler", "step")

    def configure_optimizers(self):
        rec("module", "configure_optimizers")
        if self.case.get("lbfgs"):
            opts = [torch.optim.LBFGS(self.layer.parameters(), lr=0.1, max_iter=2)]
        else:
            layers = [self.layer] + ([self.second] if self.second is not None else [])
            opts = [torch.optim.SGD(m.parameters(), lr=0.01) for m in layers]
        for i, opt in enumerate(opts):
            arg = i if len(opts) > 1 else None
            # The hook runs when step() is done, that is after the closure and the update.
            opt.register_step_post_hook(lambda *_, arg=arg: rec("optimizer", "step", arg))
            opt.register_load_state_dict_post_hook(lambda *_, arg=arg: rec("optimizer", "load_state_dict", arg))
        kind = self.case.get("scheduler")
        if kind is None:
            return opts
        if kind.startswith("plateau"):
            sch = recording_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau, opts[0], factor=0.5, patience=0)
        else:
            sch = recording_scheduler(torch.optim.lr_scheduler.StepLR, opts[0], step_size=1, gamma=0.5)
        conf = {"scheduler": sch, "interval": kind.split("_")[-1], "frequency": 1}
        if kind.startswith("plateau"):
            conf["monitor"] = "train_loss" if kind == "plateau_step" else "val_loss"
        return {"optimizer": opts[0], "lr_scheduler": conf}


class Data(Loaders, DataModuleBase):
    who = "datamodule"

    def __init__(self, case):
        super().__init__()
        self.case = case


# ---- cases ----------------------------------------------------------------------------------------------------
# train, val: number of batches (val as a list: several loaders; val also counts for test and predict).
# trainer, checkpoint: options of Trainer and of ModelCheckpoint; all others have Lightning's defaults.
# calls: what is recorded, in order, on one trainer and one module.
# before: a fit that is not recorded, with its own module and trainer, and with what differs from the case;
# ckpt: the file of it that the recorded calls get as ckpt_path.
# scheduler: step, epoch = StepLR(step_size=1, gamma=0.5) with that interval;
#   plateau_epoch, plateau_step = ReduceLROnPlateau(factor=0.5, patience=0) with that interval, the first on val_loss,
#   the second on train_loss.
DEFAULTS = {"train": 2, "val": 1, "calls": ["fit"], "trainer": {"max_epochs": 1}, "checkpoint": {}}
CASES = {
    "normal": dict(text="two epochs, step scheduler", scheduler="step", trainer=dict(max_epochs=2)),
    "normal_epoch_scheduler": dict(text="as normal, epoch scheduler", scheduler="epoch", trainer=dict(max_epochs=2)),
    "accumulate_tail": dict(text="accumulation 2 over 5 batches, tail window of one batch", train=5, scheduler="step",
                            trainer=dict(max_epochs=1, accumulate_grad_batches=2)),
    "accumulate_val_mid_window": dict(text="accumulation 2, validation after every batch of 3", train=3,
                                      trainer=dict(max_epochs=1, accumulate_grad_batches=2, val_check_interval=1)),
    "clipping": dict(text="gradient clipping by norm", trainer=dict(max_epochs=1, gradient_clip_val=1.0)),
    "manual": dict(text="manual optimization", manual=1),
    "manual_two_optimizers": dict(text="manual optimization, two optimizers, each zero_grad, manual_backward, step",
                                  manual=2),
    "resume_epoch_end": dict(text="resume from the file of epoch 0, new trainer with max_epochs=2", scheduler="step",
                             trainer=dict(max_epochs=2), before=dict(trainer=dict(max_epochs=1)),
                             ckpt="epoch=0-step=2"),
    "resume_epoch_end_max_steps": dict(text="as resume_epoch_end, but stopped by max_steps=4", scheduler="step",
                                       trainer=dict(max_steps=4), before=dict(trainer=dict(max_epochs=1)),
                                       ckpt="epoch=0-step=2"),
    "resume_mid_epoch": dict(text="resume from the file written after batch 2 of 4", train=4, scheduler="step",
                             checkpoint=dict(every_n_train_steps=2, save_top_k=-1),
                             before={}, ckpt="epoch=0-step=2"),
    "exception": dict(text="training_step raises at batch 1 of 3", train=3, raise_at=1),
    "validate": dict(text="validate alone", val=2, calls=["validate"]),
    "validate_ckpt": dict(text="validate with ckpt_path, file of a fit of one epoch", val=2, calls=["validate"],
                          before={}, ckpt="epoch=0-step=2"),
    "test": dict(text="test alone", val=2, calls=["test"]),
    "predict": dict(text="predict alone", val=2, calls=["predict"]),
    "no_sanity_check": dict(text="num_sanity_val_steps=0", trainer=dict(max_epochs=1, num_sanity_val_steps=0)),
    "save_every_n_steps": dict(text="file every 2 of 5 steps, all kept", train=5,
                               checkpoint=dict(every_n_train_steps=2, save_top_k=-1)),
    "val_check_interval": dict(text="validation every 2 of 5 batches", train=5,
                               trainer=dict(max_epochs=1, val_check_interval=2)),
    "two_val_loaders": dict(text="two validation loaders of 1 and 2 batches, sequential", val=[1, 2]),
    "skip_epoch": dict(text="module's on_train_batch_start returns -1 at batch 1 of 3", train=3, skip_at=1,
                       scheduler="epoch"),
    "none_step": dict(text="training_step returns nothing at batch 1 of 3", train=3, none_at=1, scheduler="step"),
    "should_stop": dict(text="callback sets should_stop in on_train_batch_end of batch 1 of 4", train=4, stop_at=1,
                        scheduler="epoch", trainer=dict(max_epochs=2)),
    "plateau": dict(text="plateau scheduler on val_loss, interval epoch", scheduler="plateau_epoch",
                    trainer=dict(max_epochs=2)),
    "step_plateau": dict(text="plateau scheduler on train_loss, interval step", scheduler="plateau_step"),
    "lbfgs": dict(text="LBFGS(lr=0.1, max_iter=2), one batch", train=1, lbfgs=True),
    "datamodule": dict(text="fit with a data module; module overrides the same loader and transfer hooks", data=True),
    "fit_then_validate": dict(text="fit, then validate, same trainer and module; layer is made in configure_model if "
                                   "absent", build_in_configure_model=True, calls=["fit", "validate"]),
    "max_steps": dict(text="max_steps=3, 4 batches per epoch", train=4, scheduler="step",
                      trainer=dict(max_steps=3)),
    "limit_val_batches_0": dict(text="validation switched off", trainer=dict(max_epochs=1, limit_val_batches=0)),
    "check_val_every_n_epoch": dict(text="validation every second of three epochs",
                                    trainer=dict(max_epochs=3, check_val_every_n_epoch=2)),
}


def make_trainer(case, folder):
    checkpoint = Checkpoint(dirpath=os.path.join(folder, "ckpt"), **case["checkpoint"])
    return pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
                      default_root_dir=folder,
                      callbacks=[Recorder(case), checkpoint], **case["trainer"])


def run_calls(case, folder, ckpt):
    pl.seed_everything(1, verbose=False)
    module, trainer = Module(case), make_trainer(case, folder)
    data = Data(case) if case.get("data") else None
    for call in case["calls"]:
        EVENTS.append(f"# ---- trainer.{call}")
        try:
            quiet = {"verbose": False} if call in ("validate", "test") else {}  # no result table
            getattr(trainer, call)(module, datamodule=data, ckpt_path=ckpt, weights_only=False, **quiet)
        except RuntimeError as e:
            if str(e) != "planned":
                raise
            EVENTS.append("# the exception leaves trainer.fit here")
    return trainer


def record(name):
    case = {**DEFAULTS, **CASES[name]}
    with tempfile.TemporaryDirectory() as tmp:
        ckpt = None
        if "before" in case:
            folder = os.path.join(tmp, "before")
            run_calls({**case, "calls": ["fit"], **case["before"]}, folder, None)
            ckpt = os.path.join(folder, "ckpt", case["ckpt"] + ".ckpt")
        EVENTS.clear()
        trainer = run_calls(case, os.path.join(tmp, "run"), ckpt)
    config = {k: v for k, v in case.items() if k != "text"}
    head = [f"# case: {name}", f"# {case['text']}", f"# lightning {pl.__version__}, torch {torch.__version__}",
            f"# config: {config}",
            f"# after: global_step={trainer.global_step} current_epoch={trainer.current_epoch}"]
    with open(os.path.join(OUT, name + ".txt"), "w") as f:
        f.write("\n".join(head + EVENTS) + "\n")
    print(f"{name}: {len(EVENTS)} lines")


def main():
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    os.makedirs(OUT, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        record(name)


if __name__ == "__main__":
    main()
