// Weights that are shared over a model-parallel group: a network that learns to step the heat
// equation forward, on a domain whose rows are spread over ranks.
//
//   build/release/examples/shared_weights --mesh data=2,model=2     four ranks of this host
//   build/release/examples/shared_weights --mesh data=1,model=1     one
//
// Each rank of "model" holds a strip of each sample's rows and exchanges border rows before each
// convolution; ranks of "data" have different samples. All ranks have the same convolutions. A
// rank's loss is its strip's share of the loss of the whole domain, so the gradient of a weight is
// the sum over "model" and the mean over "data": mark_as_shared() says so, and that is all.
//
// With more than one rank the first one then trains the same on its own, and both loss curves are
// printed side by side. Expected: they differ by less than 1e-10, and so do the raw gradients of
// the first step; the exit code is 1 if not (1e-6 and 1e-12). Takes about 5 s.

#include <fulmen/fulmen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "halo_network.h"
#include "heat_data.h"

namespace {

struct Settings {
  std::string mesh = "data=2,model=2";
  std::int64_t epochs = 3;
  std::int64_t batch_size = 8;
  std::int64_t channels = 8;
  double lr = 3e-2;
  std::uint64_t seed = 1;
  heat::Problem problem;
};

class HeatModule final : public fulmen::LightningModule<> {
 public:
  explicit HeatModule(const Settings& settings) : settings_(settings) {}

  void configure_sharded_model() override {
    const auto mesh = fulmen::current_mesh();
    data_ = mesh.data_group();
    rows_ = mesh.model_group();
    network_ = register_module("network", heat::HaloNetwork(settings_.channels));
    if (mesh.has("model")) fulmen::mark_as_shared(*network_, "model");
  }

  fulmen::StepOutput training_step(fulmen::Batch& batch, std::int64_t) override {
    auto [inputs, targets] = batch.unpack<2>();
    const auto height = targets.size(2) / rows_->size();
    const auto strip = [&](const at::Tensor& field) {
      return field.narrow(2, rows_->rank() * height, height);
    };
    const auto error = network_->forward(strip(inputs), *rows_) - strip(targets);
    // This strip's term of the mean over the whole domain.
    auto loss = error.square().sum() / targets.numel();
    record(loss);
    return loss;
  }

  void on_before_optimizer_step(fulmen::Optimizer&) override {
    if (!first_gradients.empty()) return;
    for (const auto& item : named_parameters())
      first_gradients[item.key()] = item.value().grad().clone();
  }

  fulmen::OptimizerConfigs configure_optimizers() override {
    return fulmen::SGD::make(*this, {.lr = settings_.lr, .momentum = 0.9});
  }

  std::vector<double> curve;  ///< Loss of the whole domain and of all samples, each step.
  std::map<std::string, at::Tensor> first_gradients;

 private:
  void record(const at::Tensor& loss) {
    auto whole = loss.detach().clone();
    fulmen::all_reduce(whole, fulmen::ReduceOp::kSum, *rows_);
    fulmen::all_reduce(whole, fulmen::ReduceOp::kMean, *data_);
    curve.push_back(whole.item<double>());
    log("train_loss", whole);
  }

  Settings settings_;
  std::optional<fulmen::ProcessGroup> data_;
  std::optional<fulmen::ProcessGroup> rows_;
  heat::HaloNetwork network_ = nullptr;
};

/// Trains on the mesh, or in one process without a strategy if it is empty.
std::shared_ptr<HeatModule> train(const Settings& settings,
                                  const std::vector<fulmen::MeshAxis>& mesh) {
  std::int64_t devices = 1;
  for (const auto& axis : mesh) devices *= axis.size;
  const std::int64_t data_ranks = mesh.empty() ? 1 : mesh.front().size;
  if (settings.batch_size % data_ranks != 0)
    throw std::invalid_argument("--batch-size must be a multiple of the size of \"data\"");
  fulmen::TrainerOptions options;
  if (!mesh.empty()) options.strategy = fulmen::DdpStrategy::make({.mesh = mesh});
  options.devices = devices;
  options.precision = fulmen::Precision::k64True;
  options.loggers.emplace();
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.max_epochs = settings.epochs;
  options.gradient_clip_val = 0.5;
  options.seed = settings.seed;
  const auto fields = heat::solve(settings.problem);
  const fulmen::DataLoader loader(
      fulmen::tensor_dataset({fields.inputs, fields.targets}),
      {.batch_size = settings.batch_size / data_ranks, .shuffle = true});
  auto module = std::make_shared<HeatModule>(settings);
  fulmen::Trainer trainer(options);
  trainer.fit(module, loader);
  return trainer.is_global_zero() ? module : nullptr;
}

/// Prints both curves; false if they are not the same to rounding.
bool compare(const HeatModule& on_mesh, const HeatModule& alone) {
  double gradient = 0;
  for (const auto& [name, value] : on_mesh.first_gradients) {
    gradient =
        std::max(gradient, (value - alone.first_gradients.at(name)).abs().max().item<double>());
  }
  double loss = 0;
  std::puts(" step   loss on the mesh     loss on one rank");
  for (std::size_t i = 0; i < on_mesh.curve.size(); ++i) {
    std::printf("%5zu   %.12f       %.12f\n", i, on_mesh.curve[i], alone.curve[i]);
    loss = std::max(loss, std::abs(on_mesh.curve[i] - alone.curve[i]));
  }
  std::printf("largest difference: of a raw gradient of the first step %.2e, of the loss %.2e\n",
              gradient,
              loss);
  return gradient <= 1e-12 && loss <= 1e-6 && on_mesh.curve.size() == alone.curve.size();
}

int run(const Settings& settings) {
  const auto mesh = fulmen::parse_mesh(settings.mesh);
  if (mesh.size() != 2 || mesh[0].name != "data" || mesh[1].name != "model")
    throw std::invalid_argument("--mesh must be data=<ranks>,model=<ranks>");
  if (mesh[1].size < 1 || settings.problem.grid % mesh[1].size != 0)
    throw std::invalid_argument("--grid must be a multiple of the size of \"model\"");
  const auto on_mesh = train(settings, mesh);
  if (on_mesh == nullptr) return 0;  // Rank 0 prints.
  if (mesh[0].size * mesh[1].size > 1) return compare(*on_mesh, *train(settings, {})) ? 0 : 1;
  for (std::size_t i = 0; i < on_mesh->curve.size(); ++i)
    std::printf("%5zu   %.12f\n", i, on_mesh->curve[i]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Learns the heat equation on a domain that is spread over ranks.");
  app.option_defaults()->always_capture_default();
  app.add_option("--mesh", settings.mesh, "data=<ranks>,model=<ranks>");
  app.add_option("--epochs", settings.epochs, "Epochs")->check(CLI::Range(1, 100000));
  app.add_option("--batch-size", settings.batch_size, "Samples per step, over all ranks");
  app.add_option("--channels", settings.channels, "Channels of the inner layers");
  app.add_option("--grid", settings.problem.grid, "Points along each side of the domain");
  app.add_option("--samples", settings.problem.samples, "Samples that the solver makes");
  app.add_option("--lr", settings.lr, "Learning rate");
  app.add_option("--seed", settings.seed, "Seed of initial weights and order");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(settings);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
