#include "predict_loop.h"

#include <torch/torch.h>

#include <algorithm>
#include <iterator>

#include "evaluation_loop.h"
#include "limited_source.h"
#include "predict_gather.h"

namespace fulmen::detail {
namespace {

void predict_batch(Session& session,
                   BatchView batch,
                   std::int64_t batch_idx,
                   std::int64_t loader_idx,
                   std::vector<AnyBatch>& outputs) {
  const auto start = HookPoint::kOnPredictBatchStart;
  const auto end = HookPoint::kOnPredictBatchEnd;
  session.call_callbacks(start, &Callback::on_predict_batch_start, batch, batch_idx, loader_idx);
  session.hook(start).dispatch_eval_batch_start(Stage::kPredict, batch, batch_idx, loader_idx);
  auto& module = session.hook(HookPoint::kPredictStep);
  auto prediction = session.in_precision(
      [&] { return module.dispatch_predict_step(batch, batch_idx, loader_idx); });
  session.call_callbacks(
      end, &Callback::on_predict_batch_end, prediction.view(), batch, batch_idx, loader_idx);
  session.hook(end).dispatch_predict_batch_end(prediction.view(), batch, batch_idx, loader_idx);
  prediction.view().to(c10::Device(c10::kCPU));
  outputs.push_back(std::move(prediction));
}

bool gathers(const Session& session) {
  return session.several_ranks() && session.options.use_distributed_sampler;
}

// Before hours of work are done for predictions that cannot go to rank 0. Ranks that have no batch
// take part.
void check_first(Session& session, const std::vector<AnyBatch>& outputs) {
  if (!gathers(session)) return;
  const auto first = outputs.empty() ? BatchView() : outputs.front().view();
  check_predictions_travel(first, session.strategy().mesh());
}

void predict_loader(Session& session,
                    BatchSource& source,
                    std::int64_t loader_idx,
                    std::vector<AnyBatch>& outputs) {
  const auto what = "the predict loader " + std::to_string(loader_idx);
  LimitedSource loader(source,
                       session.dev_run_or(session.options.limit_predict_batches),
                       what,
                       "limit_predict_batches",
                       Lookahead::kNo);
  session.prepare_source(source, what);
  if (!session.several_ranks()) loader.require_batches();
  session.plan_.eval_batches.push_back(loader.size());
  const StopAtExit stop{loader};
  loader.start({.epoch = session.progress().epoch, .batches_to_skip = 0});
  session.check_same_order(loader, what);
  AnyBatch batch;
  for (std::int64_t batch_idx = 0; loader.next(batch); ++batch_idx) {
    session.transfer(batch.view(), loader_idx);
    predict_batch(session, batch.view(), batch_idx, loader_idx, outputs);
    if (batch_idx == 0) check_first(session, outputs);
    if (session.interruption() != nullptr) return;
  }
  if (outputs.empty()) check_first(session, outputs);
}

std::vector<AnyBatch> joined(std::vector<std::vector<AnyBatch>> loaders) {
  std::vector<AnyBatch> all;
  for (auto& outputs : loaders) std::move(outputs.begin(), outputs.end(), std::back_inserter(all));
  return all;
}

}  // namespace

std::vector<AnyBatch> run_predict_loop(Session& session) {
  auto sources = session.eval_sources(Stage::kPredict);
  std::vector<std::vector<AnyBatch>> outputs(sources.size());
  ModeGuard modes(*session.module);
  session.hook(HookPoint::kOnPredictModelEval).on_predict_model_eval();
  c10::InferenceMode inference(session.evaluates_in_inference_mode());
  at::NoGradGuard no_grad;
  session.call(
      HookPoint::kOnPredictStart, &Callback::on_predict_start, &ModuleBase::on_predict_start);
  session.call(HookPoint::kOnPredictEpochStart,
               &Callback::on_predict_epoch_start,
               &ModuleBase::on_predict_epoch_start);
  session.plan_.eval_batches.clear();
  for (std::size_t i = 0; i < sources.size() && session.interruption() == nullptr; ++i) {
    predict_loader(session, *sources[i], static_cast<std::int64_t>(i), outputs[i]);
  }
  if (session.interruption() != nullptr) return {};
  auto result = gathers(session) ? gather_predictions(std::move(outputs), session.strategy().mesh())
                                 : joined(std::move(outputs));
  session.call(HookPoint::kOnPredictEpochEnd,
               &Callback::on_predict_epoch_end,
               &ModuleBase::on_predict_epoch_end);
  session.call(HookPoint::kOnPredictEnd, &Callback::on_predict_end, &ModuleBase::on_predict_end);
  return result;
}

}  // namespace fulmen::detail
