#include "fulmen/callbacks/model_summary.h"

#include <unordered_set>

#include "callbacks/monitoring.h"
#include "callbacks/text_table.h"
#include "fulmen/core/module/module_base.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

struct Size {
  std::int64_t total = 0;
  std::int64_t trainable = 0;
  std::int64_t bytes = 0;
};

Size size_of(const std::vector<at::Tensor>& parameters) {
  Size size;
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    size.total += parameter.numel();
    size.trainable += parameter.requires_grad() ? parameter.numel() : 0;
    size.bytes += parameter.numel() * static_cast<std::int64_t>(parameter.element_size());
  }
  return size;
}

/// "torch::nn::LinearImpl" as "Linear".
std::string type_of(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const auto scope = name.find('<') == std::string::npos ? name.rfind("::") : std::string::npos;
      scope != std::string::npos) {
    name.erase(0, scope + 2);
  }
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

void add_row(detail::TextTable& table,
             const std::string& name,
             const torch::nn::Module& module,
             const Size& size) {
  table.add_row({name,
                 type_of(module),
                 detail::with_separators(size.total),
                 module.is_training() ? "train" : "eval"});
}

void add_children(detail::TextTable& table,
                  const torch::nn::Module& module,
                  const std::string& prefix,
                  std::int64_t depth) {
  if (depth == 0) return;
  for (const auto& child : module.named_children()) {
    const auto name = prefix + child.key();
    add_row(table, name, *child.value(), size_of(child.value()->parameters()));
    add_children(table, *child.value(), name + ".", depth - 1);
  }
}

std::string total_line(const char* label, std::int64_t count) {
  return std::string("\n") + label + detail::with_separators(count);
}

}  // namespace

std::string format_model_summary(const torch::nn::Module& module,
                                 const ModelSummaryOptions& options) {
  std::string text;
  if (options.max_depth != 0) {
    detail::TextTable table({"Name", "Type"});
    table.add_column("Params", detail::Align::kRight);
    table.add_column("Mode", detail::Align::kLeft);
    if (const auto own = size_of(module.parameters(/*recurse=*/false)); own.total > 0) {
      add_row(table, "(own parameters)", module, own);
    }
    add_children(table, module, "", options.max_depth);
    text = table.str();
  }
  const auto total = size_of(module.parameters());
  text += total_line("Trainable params:     ", total.trainable);
  text += total_line("Non-trainable params: ", total.total - total.trainable);
  text += total_line("Total params:         ", total.total);
  text += "\nSize of params:       " +
          detail::format_number("%.3f", static_cast<double>(total.bytes) / 1e6) + " MB";
  return options.max_depth == 0 ? text.substr(1) : text;
}

std::shared_ptr<ModelSummary> ModelSummary::make(ModelSummaryOptions options) {
  if (options.max_depth < -1) {
    fail<ConfigError>("ModelSummary",
                      "max_depth must be -1 (all), 0 (totals only) or more, got ",
                      options.max_depth,
                      ".");
  }
  return std::shared_ptr<ModelSummary>(new ModelSummary(options));
}

void ModelSummary::on_fit_start(Context& context, Module& module) {
  if (detail::is_writer(context)) context.log().info(format_model_summary(module, options_));
}

}  // namespace fulmen
