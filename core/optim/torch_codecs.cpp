#include "torch_codecs.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <deque>
#include <type_traits>
#include <utility>

#include "fulmen/core/support/error.h"
#include "group_state.h"

namespace fulmen::detail {
namespace {

namespace to = torch::optim;
using Hyperparameter = TorchOptimizerCodec::Hyperparameter;
using State = std::unique_ptr<to::OptimizerParamState>;

// `access` returns a reference to the option, of options that are const or not.
template <class Options, class Access>
Hyperparameter option(std::string name, Access access) {
  return {.name = std::move(name),
          .get =
              [access](const to::OptimizerOptions& options) {
                return static_cast<double>(access(static_cast<const Options&>(options)));
              },
          .set =
              [access](to::OptimizerOptions& options, double value) {
                auto& target = access(static_cast<Options&>(options));
                target = static_cast<std::remove_reference_t<decltype(target)>>(value);
              }};
}

void put(TensorMap& tensors, const char* key, const at::Tensor& tensor) {
  if (tensor.defined()) tensors[key] = tensor;
}

at::Tensor count(std::int64_t value) {
  return at::scalar_tensor(value, at::kLong);
}

const at::Tensor& take(const TensorMap& tensors, const char* key) {
  const auto found = tensors.find(key);
  if (found == tensors.end()) fail<CheckpointError>("TorchOptimizer", "the state lacks ", key, ".");
  return found->second;
}

at::Tensor take_optional(const TensorMap& tensors, const char* key) {
  const auto found = tensors.find(key);
  return found == tensors.end() ? at::Tensor() : found->second;
}

struct TensorRule {
  const char* name;
  bool required;
};

// A step count, and tensors like the parameter.
auto elementwise_check(std::vector<TensorRule> rules, bool has_step) {
  return [rules = std::move(rules), has_step](std::span<const NamedParameter> group,
                                              std::size_t index,
                                              const TensorMap& tensors,
                                              std::vector<std::string>& problems) {
    const auto& parameter = group[index].tensor;
    std::size_t known = 0;
    for (const auto& [name, required] : rules) {
      const auto tensor = take_optional(tensors, name);
      if (tensor.defined()) ++known;
      if (!tensor.defined() && required) problems.push_back(sentence("missing tensor ", name));
      if (tensor.defined() && tensor.sizes() != parameter.sizes()) {
        problems.push_back(sentence(
            name, " has shape ", tensor.sizes(), " where ", parameter.sizes(), " is needed"));
      }
      if (tensor.defined() && tensor.scalar_type() != parameter.scalar_type()) {
        problems.push_back(sentence(name,
                                    " has dtype ",
                                    tensor.scalar_type(),
                                    " where ",
                                    parameter.scalar_type(),
                                    " is needed"));
      }
    }
    const auto step = take_optional(tensors, "step");
    if (has_step && !(step.defined() && step.dim() == 0 && step.scalar_type() == at::kLong)) {
      problems.push_back("step must be an int64 scalar");
    }
    if (known + (has_step && step.defined()) != tensors.size()) {
      for (const auto& [name, tensor] : tensors) {
        bool expected = has_step && name == "step";
        for (const auto& rule : rules) expected |= name == rule.name;
        if (!expected) problems.push_back(sentence("unexpected tensor ", name));
      }
    }
  };
}

TorchOptimizerCodec sgd_codec() {
  using O = to::SGDOptions;
  return {
      .name = "torch::optim::SGD",
      .save =
          [](const to::OptimizerParamState& given) {
            TensorMap tensors;
            put(tensors,
                "momentum_buffer",
                static_cast<const to::SGDParamState&>(given).momentum_buffer());
            return tensors;
          },
      .load = [](const TensorMap& tensors) -> State {
        auto state = std::make_unique<to::SGDParamState>();
        state->momentum_buffer(take(tensors, "momentum_buffer"));
        return state;
      },
      .check = elementwise_check({{"momentum_buffer", true}}, false),
      .hyperparameters = {option<O>(
                              "lr", [](auto& o) -> auto& { return o.lr(); }),
                          option<O>(
                              "momentum", [](auto& o) -> auto& { return o.momentum(); }),
                          option<O>(
                              "dampening", [](auto& o) -> auto& { return o.dampening(); }),
                          option<O>(
                              "weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
                          option<O>(
                              "nesterov", [](auto& o) -> auto& { return o.nesterov(); })}};
}

// Adam and AdamW have types of the same shape.
template <class O, class S>
TorchOptimizerCodec adam_codec(std::string name) {
  return {
      .name = std::move(name),
      .save =
          [](const to::OptimizerParamState& given) {
            const auto& state = static_cast<const S&>(given);
            TensorMap tensors;
            put(tensors, "step", count(state.step()));
            put(tensors, "exp_avg", state.exp_avg());
            put(tensors, "exp_avg_sq", state.exp_avg_sq());
            put(tensors, "max_exp_avg_sq", state.max_exp_avg_sq());
            return tensors;
          },
      .load = [](const TensorMap& tensors) -> State {
        auto state = std::make_unique<S>();
        state->step(take(tensors, "step").item<std::int64_t>());
        state->exp_avg(take(tensors, "exp_avg"));
        state->exp_avg_sq(take(tensors, "exp_avg_sq"));
        state->max_exp_avg_sq(take_optional(tensors, "max_exp_avg_sq"));
        return state;
      },
      .check = elementwise_check(
          {{"exp_avg", true}, {"exp_avg_sq", true}, {"max_exp_avg_sq", false}}, true),
      .hyperparameters = {option<O>(
                              "lr", [](auto& o) -> auto& { return o.lr(); }),
                          option<O>(
                              "beta1", [](auto& o) -> auto& { return std::get<0>(o.betas()); }),
                          option<O>(
                              "beta2", [](auto& o) -> auto& { return std::get<1>(o.betas()); }),
                          option<O>(
                              "eps", [](auto& o) -> auto& { return o.eps(); }),
                          option<O>(
                              "weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
                          option<O>(
                              "amsgrad", [](auto& o) -> auto& { return o.amsgrad(); })}};
}

TorchOptimizerCodec adagrad_codec() {
  using O = to::AdagradOptions;
  return {
      .name = "torch::optim::Adagrad",
      .save =
          [](const to::OptimizerParamState& given) {
            const auto& state = static_cast<const to::AdagradParamState&>(given);
            TensorMap tensors;
            put(tensors, "step", count(state.step()));
            put(tensors, "sum", state.sum());
            return tensors;
          },
      .load = [](const TensorMap& tensors) -> State {
        auto state = std::make_unique<to::AdagradParamState>();
        state->step(take(tensors, "step").item<std::int64_t>());
        state->sum(take(tensors, "sum"));
        return state;
      },
      .check = elementwise_check({{"sum", true}}, true),
      .hyperparameters = {option<O>(
                              "lr", [](auto& o) -> auto& { return o.lr(); }),
                          option<O>(
                              "lr_decay", [](auto& o) -> auto& { return o.lr_decay(); }),
                          option<O>(
                              "weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
                          option<O>(
                              "initial_accumulator_value",
                              [](auto& o) -> auto& { return o.initial_accumulator_value(); }),
                          option<O>(
                              "eps", [](auto& o) -> auto& { return o.eps(); })}};
}

TorchOptimizerCodec rmsprop_codec() {
  using O = to::RMSpropOptions;
  return {
      .name = "torch::optim::RMSprop",
      .save =
          [](const to::OptimizerParamState& given) {
            const auto& state = static_cast<const to::RMSpropParamState&>(given);
            TensorMap tensors;
            put(tensors, "step", count(state.step()));
            put(tensors, "square_avg", state.square_avg());
            put(tensors, "momentum_buffer", state.momentum_buffer());
            put(tensors, "grad_avg", state.grad_avg());
            return tensors;
          },
      .load = [](const TensorMap& tensors) -> State {
        auto state = std::make_unique<to::RMSpropParamState>();
        state->step(take(tensors, "step").item<std::int64_t>());
        state->square_avg(take(tensors, "square_avg"));
        state->momentum_buffer(take_optional(tensors, "momentum_buffer"));
        state->grad_avg(take_optional(tensors, "grad_avg"));
        return state;
      },
      .check = elementwise_check(
          {{"square_avg", true}, {"momentum_buffer", false}, {"grad_avg", false}}, true),
      .hyperparameters = {option<O>(
                              "lr", [](auto& o) -> auto& { return o.lr(); }),
                          option<O>(
                              "alpha", [](auto& o) -> auto& { return o.alpha(); }),
                          option<O>(
                              "eps", [](auto& o) -> auto& { return o.eps(); }),
                          option<O>(
                              "weight_decay", [](auto& o) -> auto& { return o.weight_decay(); }),
                          option<O>(
                              "momentum", [](auto& o) -> auto& { return o.momentum(); }),
                          option<O>(
                              "centered", [](auto& o) -> auto& { return o.centered(); })}};
}

void put_all(TensorMap& tensors, const char* key, const std::deque<at::Tensor>& list) {
  if (!list.empty()) tensors[key] = at::stack(std::vector<at::Tensor>(list.begin(), list.end()));
}

std::deque<at::Tensor> take_all(const TensorMap& tensors, const char* key) {
  const auto stacked = take_optional(tensors, key);
  if (!stacked.defined()) return {};
  std::deque<at::Tensor> list;
  for (const auto& row : stacked.unbind()) list.push_back(row.clone());
  return list;
}

TensorMap save_lbfgs(const to::OptimizerParamState& given) {
  // `al` is scratch space: it is written before it is read in every step.
  const auto& state = static_cast<const to::LBFGSParamState&>(given);
  TensorMap tensors;
  put(tensors, "func_evals", count(state.func_evals()));
  put(tensors, "n_iter", count(state.n_iter()));
  put(tensors, "t", at::scalar_tensor(state.t(), at::kDouble));
  put(tensors, "prev_loss", at::scalar_tensor(state.prev_loss(), at::kDouble));
  put(tensors, "d", state.d());
  put(tensors, "h_diag", state.H_diag());
  put(tensors, "prev_flat_grad", state.prev_flat_grad());
  put_all(tensors, "old_dirs", state.old_dirs());
  put_all(tensors, "old_stps", state.old_stps());
  put_all(tensors, "ro", state.ro());
  return tensors;
}

State load_lbfgs(const TensorMap& tensors) {
  auto state = std::make_unique<to::LBFGSParamState>();
  state->func_evals(take(tensors, "func_evals").item<std::int64_t>());
  state->n_iter(take(tensors, "n_iter").item<std::int64_t>());
  state->t(take(tensors, "t").item<double>());
  state->prev_loss(take(tensors, "prev_loss").item<double>());
  state->d(take_optional(tensors, "d"));
  state->H_diag(take_optional(tensors, "h_diag"));
  state->prev_flat_grad(take_optional(tensors, "prev_flat_grad"));
  state->old_dirs(take_all(tensors, "old_dirs"));
  state->old_stps(take_all(tensors, "old_stps"));
  state->ro(take_all(tensors, "ro"));
  return state;
}

// The state of LBFGS stands at the first parameter and spans all of them, flattened.
void check_lbfgs(std::span<const NamedParameter> group,
                 std::size_t index,
                 const TensorMap& tensors,
                 std::vector<std::string>& problems) {
  if (index != 0) problems.push_back("LBFGS keeps state for the first parameter only");
  std::int64_t total = 0;
  for (const auto& parameter : group) total += parameter.tensor.numel();
  std::int64_t history = -1;
  for (const char* name : {"d", "prev_flat_grad", "old_dirs", "old_stps"}) {
    const auto tensor = take_optional(tensors, name);
    if (!tensor.defined()) continue;
    const bool listed = std::string_view(name).starts_with("old");
    if (tensor.dim() != (listed ? 2 : 1) || tensor.size(-1) != total) {
      problems.push_back(
          sentence(name, " has shape ", tensor.sizes(), "; its last dim must be ", total));
    } else if (listed) {
      if (history >= 0 && history != tensor.size(0))
        problems.push_back("old_dirs and old_stps differ in length");
      history = tensor.size(0);
    }
  }
  const auto ro = take_optional(tensors, "ro");
  if ((ro.defined() ? ro.numel() : 0) != std::max<std::int64_t>(history, 0)) {
    problems.push_back("ro and old_dirs differ in length");
  }
  for (const char* name : {"func_evals", "n_iter", "t", "prev_loss"}) {
    const auto tensor = take_optional(tensors, name);
    if (!tensor.defined() || tensor.numel() != 1)
      problems.push_back(sentence(name, " must be a scalar"));
  }
}

TorchOptimizerCodec lbfgs_codec() {
  using O = to::LBFGSOptions;
  return {.name = "torch::optim::LBFGS",
          .save = save_lbfgs,
          .load = load_lbfgs,
          .check = check_lbfgs,
          .hyperparameters = {
              option<O>(
                  "lr", [](auto& o) -> auto& { return o.lr(); }),
              option<O>(
                  "max_iter", [](auto& o) -> auto& { return o.max_iter(); }),
              option<O>(
                  "tolerance_grad", [](auto& o) -> auto& { return o.tolerance_grad(); }),
              option<O>(
                  "tolerance_change", [](auto& o) -> auto& { return o.tolerance_change(); }),
              option<O>(
                  "history_size", [](auto& o) -> auto& { return o.history_size(); })}};
}

}  // namespace

std::optional<TorchOptimizerCodec> known_codec(const to::Optimizer& optimizer) {
  const auto is = [&]<class T>(std::type_identity<T>) {
    return dynamic_cast<const T*>(&optimizer) != nullptr;
  };
  if (is(std::type_identity<to::SGD>{})) return sgd_codec();
  if (is(std::type_identity<to::Adam>{})) {
    return adam_codec<to::AdamOptions, to::AdamParamState>("torch::optim::Adam");
  }
  if (is(std::type_identity<to::AdamW>{})) {
    return adam_codec<to::AdamWOptions, to::AdamWParamState>("torch::optim::AdamW");
  }
  if (is(std::type_identity<to::Adagrad>{})) return adagrad_codec();
  if (is(std::type_identity<to::RMSprop>{})) return rmsprop_codec();
  if (is(std::type_identity<to::LBFGS>{})) return lbfgs_codec();
  return std::nullopt;
}

}  // namespace fulmen::detail
