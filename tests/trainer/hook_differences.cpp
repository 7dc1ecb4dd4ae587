#include "tests/trainer/hook_differences.h"

namespace fulmen {

const std::vector<Difference>& differences() {
  const std::string kTransfer =
      "module.on_before_batch_transfer module.transfer_batch_to_device "
      "module.on_after_batch_transfer ";
  const std::string kValidationEnd =
      "checkpoint.on_validation_end module.on_validation_model_train ";
  const std::string kEvaluation =
      "module.on_validation_model_eval callback.on_validation_start "
      "module.on_validation_start callback.on_validation_epoch_start "
      "module.on_validation_epoch_start " +
      kTransfer +
      "callback.on_validation_batch_start(0) module.on_validation_batch_start(0) "
      "module.validation_step(0) "
      "callback.on_validation_batch_end(0) module.on_validation_batch_end(0) "
      "callback.on_validation_epoch_end "
      "module.on_validation_epoch_end callback.on_validation_end module.on_validation_end " +
      kValidationEnd;
  const std::string kTrainStart =
      "callback.on_train_start checkpoint.on_train_start module.on_train_start ";
  const std::string kSave = "callback.on_save_checkpoint module.on_save_checkpoint checkpoint.save";

  static const std::vector<Difference> kAll = {
      {"configure_sharded_model runs once",
       "module.setup(validate) module.configure_model",
       "module.setup(validate)",
       {"fit_then_validate"}},
      {"configure_sharded_model is configure_model",
       "module.configure_model",
       "module.configure_sharded_model callback.on_configure_sharded_model"},
      {"clip_gradients and load_state_dict are not hooks", "module.clip_gradients", ""},
      {"clip_gradients and load_state_dict are not hooks", "module.load_state_dict", ""},
      {"val_dataloader comes first",
       "callback.on_sanity_check_start module.val_dataloader",
       "module.val_dataloader callback.on_sanity_check_start"},
      {"val_dataloader comes first",
       "callback.on_sanity_check_start datamodule.val_dataloader",
       "datamodule.val_dataloader callback.on_sanity_check_start"},
      {"val_dataloader comes first",
       "module.train_dataloader module.val_dataloader",
       "module.val_dataloader module.train_dataloader"},
      {"One point of restoring",
       "module.on_load_checkpoint callback.on_load_checkpoint callback.load_state_dict "
       "checkpoint.load_state_dict "
       "module.configure_optimizers callback.on_fit_start module.on_fit_start "
       "optimizer.load_state_dict "
       "scheduler.load_state_dict",
       "module.configure_optimizers module.on_load_checkpoint callback.on_load_checkpoint "
       "callback.load_state_dict "
       "checkpoint.load_state_dict optimizer.load_state_dict scheduler.load_state_dict "
       "callback.on_fit_start "
       "module.on_fit_start"},
      {"Evaluation restores weights only",
       "module.on_load_checkpoint callback.on_load_checkpoint callback.load_state_dict "
       "checkpoint.load_state_dict",
       "module.on_load_checkpoint",
       {"validate_ckpt"}},
      {"Checkpoint callbacks come last",
       "checkpoint.on_train_batch_end(#) module.on_train_batch_end(#)",
       "module.on_train_batch_end(#) checkpoint.on_train_batch_end(#)"},
      {"Checkpoint callbacks come last",
       "checkpoint.on_train_batch_end(#) " + kSave + " module.on_train_batch_end(#)",
       "module.on_train_batch_end(#) checkpoint.on_train_batch_end(#) " + kSave},
      {"Checkpoint callbacks come last",
       "checkpoint.on_validation_end module.on_validation_end",
       "module.on_validation_end checkpoint.on_validation_end"},
      {"Checkpoint callbacks come last",
       "checkpoint.on_validation_end " + kSave + " module.on_validation_end",
       "module.on_validation_end checkpoint.on_validation_end " + kSave},
      {"Checkpoint callbacks come last",
       "checkpoint.on_validation_end " + kSave + " checkpoint.remove module.on_validation_end",
       "module.on_validation_end checkpoint.on_validation_end " + kSave + " checkpoint.remove"},
      {"No loss, no update",
       "module.training_step(1) callback.on_before_zero_grad module.on_before_zero_grad "
       "module.optimizer_zero_grad "
       "callback.on_before_optimizer_step module.on_before_optimizer_step "
       "module.configure_gradient_clipping "
       "optimizer.step module.lr_scheduler_step scheduler.step",
       "module.training_step(1) callback.on_before_zero_grad module.on_before_zero_grad "
       "module.optimizer_zero_grad",
       {"none_step"}},
      {"Validation of an epoch that was cut short",
       "module.on_train_batch_start(1) module.lr_scheduler_step scheduler.step",
       "module.on_train_batch_start(1) module.lr_scheduler_step scheduler.step "
       "module.on_validation_model_zero_grad " +
           kEvaluation,
       {"skip_epoch"}},
      {"Plateau schedulers of an epoch step before checkpoints",
       "checkpoint.on_train_epoch_end " + kSave + " module.lr_scheduler_step scheduler.step",
       "module.lr_scheduler_step scheduler.step checkpoint.on_train_epoch_end " + kSave,
       {"plateau"}},
      {"Plateau schedulers of an epoch step before checkpoints",
       "checkpoint.on_train_epoch_end " + kSave +
           " checkpoint.remove module.lr_scheduler_step scheduler.step",
       "module.lr_scheduler_step scheduler.step checkpoint.on_train_epoch_end " + kSave +
           " checkpoint.remove",
       {"plateau"}},
      {"Plateau schedulers of a step are stepped with the others",
       "callback.on_train_batch_end(#) module.on_train_batch_end(#) "
       "checkpoint.on_train_batch_end(#) "
       "module.lr_scheduler_step scheduler.step",
       "module.lr_scheduler_step scheduler.step callback.on_train_batch_end(#) "
       "module.on_train_batch_end(#) "
       "checkpoint.on_train_batch_end(#)",
       {"step_plateau"}},
      {"Plateau schedulers of a step are stepped with the others",
       "callback.on_train_batch_end(1) module.on_train_batch_end(1) "
       "checkpoint.on_train_batch_end(1) "
       "module.on_validation_model_zero_grad " +
           kEvaluation + "module.lr_scheduler_step scheduler.step",
       "module.lr_scheduler_step scheduler.step callback.on_train_batch_end(1) "
       "module.on_train_batch_end(1) "
       "checkpoint.on_train_batch_end(1) module.on_validation_model_zero_grad " +
           kEvaluation,
       {"step_plateau"}},
      {"Every validation can save",
       kValidationEnd + kTransfer + "callback.on_train_batch_start(1)",
       "checkpoint.on_validation_end " + kSave + " module.on_validation_model_train " + kTransfer +
           "callback.on_train_batch_start(1)",
       {"accumulate_val_mid_window"}},
      {"Every validation can save",
       kValidationEnd + kTransfer + "callback.on_train_batch_start(2)",
       "checkpoint.on_validation_end " + kSave +
           " checkpoint.remove module.on_validation_model_train " + kTransfer +
           "callback.on_train_batch_start(2)",
       {"accumulate_val_mid_window"}},
      {"Every validation can save",
       kValidationEnd +
           "callback.on_train_epoch_end module.on_train_epoch_end checkpoint.on_train_epoch_end " +
           kSave,
       "checkpoint.on_validation_end " + kSave +
           " checkpoint.remove module.on_validation_model_train "
           "callback.on_train_epoch_end module.on_train_epoch_end checkpoint.on_train_epoch_end",
       {"accumulate_val_mid_window"}},
      {"The end of an epoch is not repeated",
       "module.train_dataloader " + kTrainStart +
           "callback.on_train_epoch_end module.on_train_epoch_end "
           "checkpoint.on_train_epoch_end " +
           kSave,
       "callback.on_sanity_check_start " + kEvaluation +
           "callback.on_sanity_check_end module.train_dataloader " + kTrainStart,
       {"resume_epoch_end_max_steps"}},
      {"The end of an epoch is not repeated",
       "checkpoint.remove callback.on_train_end",
       "callback.on_train_end",
       {"resume_epoch_end_max_steps"}},
      {"teardown after an exception",
       "callback.on_exception checkpoint.on_exception",
       "callback.on_exception checkpoint.on_exception callback.teardown(fit) module.teardown(fit)"},
  };
  return kAll;
}

const std::vector<CounterDifference>& counter_differences() {
  static const std::vector<CounterDifference> kAll = {
      {"global_step counts a batch once", "manual_two_optimizers", 2, 1},
      {"No loss, no update", "none_step", 2, 1},
      {"An epoch that is not complete stays open", "max_steps", 3, 0},
      {"An epoch that is not complete stays open", "should_stop", 2, 0},
  };
  return kAll;
}

}  // namespace fulmen
