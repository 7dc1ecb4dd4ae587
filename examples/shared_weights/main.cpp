// Weights that are shared over a model-parallel group: a network that learns to step the heat
// equation forward, on a domain whose rows are spread over ranks.
//
//   build/release/examples/shared_weights --mesh data=2,model=2     four ranks of this host
//   build/release/examples/shared_weights --mesh data=1,model=1     one
//   build/release/examples/shared_weights --compare runs/shared_weights/data=1,model=1.json
//                                                    compares with an earlier run of the program
//
// Each rank of "model" holds a strip of each sample's rows and exchanges border rows before each
// convolution; ranks of "data" have different samples. All ranks have the same convolutions. A
// rank's loss is its strip's share of the loss of the whole domain, so the gradient of a weight is
// the sum over "model" and the mean over "data": mark_as_shared() says so, and that is all.
//
// With more than one rank the first one then trains the same on its own, without a strategy, and
// both runs are printed side by side. The exit code is 1 if they differ by more than 1e-12 in a raw
// gradient of the first step, or by more than 1e-6 in a loss or a norm; expected are 1e-15 and
// 1e-12. Predicting no change has loss 1 on average; here it falls to about 0.3. Takes 1 to 5 s.

#include <fulmen/fulmen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "halo_network.h"
#include "heat_data.h"
#include "training_record.h"

namespace {

struct Settings {
  std::string mesh = "data=2,model=2";
  std::int64_t epochs = 4;
  std::int64_t batch_size = 8;
  std::int64_t channels = 8;
  double lr = 0.2;
  std::uint64_t seed = 1;
  std::string precision = "64-true";
  std::filesystem::path output = "runs/shared_weights";
  std::filesystem::path compare;
  heat::Problem problem;
};

class HeatModule final : public fulmen::LightningModule<> {
 public:
  explicit HeatModule(const Settings& settings) : channels_(settings.channels), lr_(settings.lr) {}

  /// The launch has given each rank its share of the cores, but with fields as small as these
  /// threads only wait for each other.
  void setup(fulmen::Stage) override { torch::set_num_threads(1); }

  void configure_sharded_model() override {
    const auto mesh = fulmen::current_mesh();
    data_ = mesh.data_group();
    model_ = mesh.model_group();
    network_ = register_module("network", heat::HaloNetwork(channels_));
    if (mesh.has("model")) fulmen::mark_as_shared(*network_, "model");
  }

  fulmen::StepOutput training_step(fulmen::Batch& batch, std::int64_t) override {
    auto [inputs, targets] = batch.unpack<2>();
    const auto error = network_->forward(strip(inputs), *model_) - strip(targets);
    // This strip's term of the mean over the whole domain.
    auto loss = error.square().sum() / targets.numel();
    record_loss(loss);
    return loss;
  }

  void on_before_optimizer_step(fulmen::Optimizer&) override {
    if (!record.gradients.empty()) return;
    for (const auto& item : named_parameters()) {
      const auto gradient = item.value().grad().to(torch::kDouble).contiguous();
      const auto* begin = gradient.data_ptr<double>();
      record.gradients[item.key()].assign(begin, begin + gradient.numel());
    }
  }

  void configure_gradient_clipping(fulmen::Optimizer& optimizer,
                                   std::optional<double> value,
                                   fulmen::ClipAlgorithm algorithm) override {
    record.norms.push_back(clip_gradients(optimizer, value, algorithm).item<double>());
  }

  fulmen::OptimizerConfigs configure_optimizers() override {
    return fulmen::SGD::make(*this, {.lr = lr_, .momentum = 0.5});
  }

  heat::TrainingRecord record;

 private:
  /// The rows of this rank.
  at::Tensor strip(const at::Tensor& field) const {
    const auto height = field.size(2) / model_->size();
    return field.narrow(2, model_->rank() * height, height);
  }

  /// For people to read: the loss of the whole domain and of all samples, outside the graph.
  void record_loss(const at::Tensor& loss) {
    auto whole = loss.detach().clone();
    fulmen::all_reduce(whole, fulmen::ReduceOp::kSum, *model_);
    fulmen::all_reduce(whole, fulmen::ReduceOp::kMean, *data_);
    record.losses.push_back(whole.item<double>());
  }

  std::int64_t channels_;
  double lr_;
  std::optional<fulmen::ProcessGroup> data_;
  std::optional<fulmen::ProcessGroup> model_;
  heat::HaloNetwork network_ = nullptr;
};

/// Trains on the mesh, or in one process without a strategy if it is empty. The record of rank 0;
/// nothing on the others.
std::optional<heat::TrainingRecord> train(const Settings& settings,
                                          const std::vector<fulmen::MeshAxis>& mesh) {
  const std::int64_t data_ranks = mesh.empty() ? 1 : mesh[0].size;
  const std::int64_t model_ranks = mesh.empty() ? 1 : mesh[1].size;
  fulmen::TrainerOptions options;
  if (!mesh.empty()) options.strategy = fulmen::DdpStrategy::make({.mesh = mesh});
  options.devices = data_ranks * model_ranks;
  options.precision = fulmen::parse_precision(settings.precision);
  options.loggers.emplace();
  options.default_root_dir = settings.output;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.max_epochs = settings.epochs;
  options.gradient_clip_val = 1.0;
  options.seed = settings.seed;
  const auto fields = heat::solve(settings.problem);
  const auto dtype = settings.precision == "64-true" ? torch::kDouble : torch::kFloat;
  const fulmen::DataLoader loader(
      fulmen::tensor_dataset({fields.inputs.to(dtype), fields.targets.to(dtype)}),
      {.batch_size = settings.batch_size / data_ranks, .shuffle = true});
  const auto module = std::make_shared<HeatModule>(settings);
  fulmen::Trainer trainer(options);
  const auto fitted = trainer.fit(module, loader);
  if (fitted.status != fulmen::RunStatus::kFinished)
    throw std::runtime_error("stopped: " + fitted.stop_reason);
  if (!trainer.is_global_zero()) return {};
  return module->record;
}

std::vector<fulmen::MeshAxis> checked_mesh(const Settings& settings) {
  auto mesh = fulmen::parse_mesh(settings.mesh);
  if (mesh.size() != 2 || mesh[0].name != "data" || mesh[1].name != "model" || mesh[0].size < 1 ||
      mesh[1].size < 1)
    throw std::invalid_argument("--mesh must be data=<ranks>,model=<ranks>");
  if (settings.problem.grid % mesh[1].size != 0)
    throw std::invalid_argument("--grid must be a multiple of the size of \"model\"");
  if (settings.batch_size % mesh[0].size != 0)
    throw std::invalid_argument("--batch-size must be a multiple of the size of \"data\"");
  // record_loss() is collective: every rank needs a batch in every step.
  if (settings.problem.samples % settings.batch_size != 0)
    throw std::invalid_argument("--samples must be a multiple of --batch-size");
  return mesh;
}

int run(const Settings& settings) {
  const auto mesh = checked_mesh(settings);
  std::optional<heat::TrainingRecord> other;
  if (!settings.compare.empty()) other = heat::read_record(settings.compare);
  const auto record = train(settings, mesh);
  if (!record) return 0;  // Rank 0 prints.
  const auto name =
      "data=" + std::to_string(mesh[0].size) + ",model=" + std::to_string(mesh[1].size);
  heat::write_record(*record, settings.output / (name + ".json"));
  if (!other && mesh[0].size * mesh[1].size > 1) other = train(settings, {});
  if (!other) {
    for (std::size_t i = 0; i < record->losses.size(); ++i)
      std::printf("%5zu  %.12f\n", i, record->losses[i]);
    return 0;
  }
  const auto other_name = settings.compare.empty() ? "one rank" : settings.compare.string();
  if (heat::print_comparison(*record, name, *other, other_name)) return 0;
  if (settings.precision != "64-true") return 0;  // Rounding is larger than what is asked for.
  std::fprintf(stderr, "error: the runs differ by more than rounding\n");
  return 1;
}

void add_options(CLI::App& app, Settings& settings) {
  app.option_defaults()->always_capture_default();
  app.add_option("--mesh", settings.mesh, "data=<ranks>,model=<ranks>");
  app.add_option("--epochs", settings.epochs, "Epochs")->check(CLI::Range(1, 100000));
  app.add_option("--batch-size", settings.batch_size, "Samples per step, over all ranks")
      ->check(CLI::PositiveNumber);
  app.add_option("--channels", settings.channels, "Channels of the inner layers")
      ->check(CLI::PositiveNumber);
  app.add_option("--grid", settings.problem.grid, "Points along each side of the domain")
      ->check(CLI::PositiveNumber);
  app.add_option("--samples", settings.problem.samples, "Samples that the solver makes")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", settings.lr, "Learning rate");
  app.add_option("--seed", settings.seed, "Seed of data, initial weights and order");
  app.add_option("--precision", settings.precision, "64-true or 32-true")
      ->check(CLI::IsMember({"64-true", "32-true"}));
  app.add_option("--output", settings.output, "Folder for <mesh>.json: curves and gradients");
  app.add_option("--compare", settings.compare, "The .json of another run, instead of one rank");
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Learns the heat equation on a domain that is spread over ranks.");
  add_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  settings.problem.seed = settings.seed;
  torch::set_num_threads(1);  // For the solver; see HeatModule::setup().
  try {
    return run(settings);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
