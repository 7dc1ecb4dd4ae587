// What the ranks of a run decide and know together.
#include <torch/torch.h>

#include <boost/json/array.hpp>
#include <csignal>
#include <cstring>

#include "core/distributed/same_everywhere.h"
#include "fulmen/core/distributed/collectives.h"
#include "loops/fit_loop.h"
#include "loops/limited_source.h"
#include "session.h"
#include "signals.h"

namespace fulmen::detail {
namespace {

/// Gathers the tables of all ranks. Model ranks of one data rank have the same samples: the first
/// of them counts.
MetricStore::Exchange exchange_of_metrics(const DeviceMesh& mesh) {
  return [mesh](const StateDict& mine) {
    auto table = mine.values;
    if (!table.empty()) {
      boost::json::array numbers;
      const auto flat = mine.tensors.begin()->second.reshape(-1);
      for (std::int64_t i = 0; i < flat.numel(); ++i)
        numbers.push_back(double_to_json(flat[i].item<double>()));
      table["numbers"] = std::move(numbers);
      table["shape"] = boost::json::array{mine.tensors.begin()->second.size(0),
                                          mine.tensors.begin()->second.size(1)};
    }
    table["counts"] = mesh.model_group().rank() == 0;
    std::vector<StateDict> tables;
    for (const auto& value : all_gather_object(table, mesh.world()->all())) {
      auto values = value.as_object();
      if (!values.at("counts").as_bool() || !values.contains("numbers")) continue;
      const auto& shape = values.at("shape").as_array();
      const auto& list = values.at("numbers").as_array();
      auto numbers = at::empty({static_cast<std::int64_t>(list.size())}, at::kDouble);
      for (std::size_t i = 0; i < list.size(); ++i)
        numbers[static_cast<std::int64_t>(i)] = json_to_double(list[i], "metrics of a rank");
      StateDict table_of_rank{.values = values, .tensors = {}};
      table_of_rank.tensors["table"] =
          numbers.reshape({shape[0].to_number<std::int64_t>(), shape[1].to_number<std::int64_t>()});
      tables.push_back(std::move(table_of_rank));
    }
    return tables;
  };
}

}  // namespace

bool Session::stop_wanted() {
  if (!wanted_stop_.empty()) return true;
  if (options.signals == SignalHandling::kSaveAndStop && SignalGuard::received() != 0) {
    wanted_stop_ = std::string("SIG") + ::sigabbrev_np(SignalGuard::received());
  } else if (stop_requested_.load(std::memory_order_acquire)) {
    std::lock_guard<std::mutex> lock(stop_mutex_);
    wanted_stop_ = stop_text_.empty() ? "stop requested" : stop_text_;
  }
  return !wanted_stop_.empty();
}

void Session::stop_jointly() {
  interruption_text_ = stop_wanted() ? wanted_stop_ : "another rank was asked to stop";
}

void Session::stop_training(std::string_view reason) {
  if (!several_ranks()) {
    state.stop_reason = reason;
  } else if (wanted_finish_.empty()) {
    wanted_finish_ = reason.empty() ? "stop_training() was called" : reason;
  }
}

WindowVote Session::wishes() {
  WindowVote vote;
  vote.stop = stop_wanted();
  vote.finish = !wanted_finish_.empty();
  vote.validate = fit_loop != nullptr && fit_loop->validation_is_due_by_clock();
  return vote;
}

void Session::obey(const WindowVerdict& verdict) {
  if (!several_ranks()) return;
  if (verdict.stop) stop_jointly();
  if (verdict.finish) {
    state.stop_reason =
        wanted_finish_.empty() ? "another rank called stop_training()" : wanted_finish_;
    wanted_finish_.clear();
  }
  state.validation_wanted = verdict.validate;
}

void Session::agree_on_wishes() {
  if (!several_ranks()) return;
  const auto vote = wishes();
  const auto mine =
      at::tensor({vote.stop ? 1 : 0, vote.finish ? 1 : 0, vote.validate ? 1 : 0}, at::kLong);
  const auto any = strategy_->reduce(mine, ReduceOp::kMax);
  WindowVerdict verdict;
  verdict.stop = any[0].item<std::int64_t>() != 0;
  verdict.finish = any[1].item<std::int64_t>() != 0;
  verdict.validate = any[2].item<std::int64_t>() != 0;
  obey(verdict);
}

bool Session::any_rank(Answer mine) const {
  if (!several_ranks()) return mine == Answer::kYes;
  const auto any =
      strategy_->reduce(at::tensor({mine == Answer::kYes ? 1 : 0}, at::kLong), ReduceOp::kMax);
  return any.item<std::int64_t>() != 0;
}

int Session::signal_of_any_rank() const {
  const std::int64_t mine =
      options.signals == SignalHandling::kSaveAndStop ? SignalGuard::received() : 0;
  if (!several_ranks()) return static_cast<int>(mine);
  const auto any = strategy_->reduce(at::tensor({mine}, at::kLong), ReduceOp::kMax);
  return static_cast<int>(any.item<std::int64_t>());
}

const char* Session::interruption() {
  if (interruption_text_.empty() && !several_ranks() && stop_wanted()) stop_jointly();
  return interruption_text_.empty() ? nullptr : interruption_text_.c_str();
}

void Session::check_same_order(const LimitedSource& source, std::string_view what) const {
  if (!several_ranks() || !options.use_distributed_sampler) return;
  const auto difference = find_difference(source.order(), strategy_->mesh().world()->all());
  if (difference.empty()) return;
  fail<DataError>(
      what,
      "is not the same on all ranks, so that their shares overlap or leave samples out: ",
      difference,
      ". Make the same loader on every rank, or split the data yourself and set ",
      ".use_distributed_sampler = false.");
}

void Session::end_metrics_epoch() {
  if (several_ranks()) metrics.reduce_epoch(exchange_of_metrics(strategy_->mesh()));
  metrics.end_epoch();
}

std::optional<double> Session::metric_of_rank_zero(const std::string& name) const {
  const auto own = metrics.metric(name);
  if (!several_ranks()) return own;
  auto value = at::tensor({own ? 1.0 : 0.0, own.value_or(0)}, at::kDouble);
  broadcast(value, 0, strategy_->mesh().world()->all());
  if (value[0].item<double>() == 0) return std::nullopt;
  return value[1].item<double>();
}

void Session::commit_epoch_hooks() {
  metrics.commit();
  if (several_ranks()) metrics.reduce_epoch_hooks(exchange_of_metrics(strategy_->mesh()));
}

}  // namespace fulmen::detail
