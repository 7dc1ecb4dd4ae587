#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/trainer/hook_differences.h"
#include "tests/trainer/hook_recorder.h"

#ifndef FULMEN_TEST_DATA_DIR
#define FULMEN_TEST_DATA_DIR "tests/parity/golden"
#endif

namespace fulmen {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

TrainerOptions with_epochs(std::int64_t epochs) {
  return {.max_epochs = epochs};
}

std::vector<HookCase> all_cases() {
  using enum HookScheduler;
  const auto epochs1 = with_epochs(1), epochs2 = with_epochs(2);
  const ModelCheckpointOptions every_two_steps{.save_top_k = -1, .every_n_train_steps = 2};
  const std::string file = "epoch=0-step=2";
  return {
      {.name = "normal", .trainer = epochs2, .scheduler = kStep},
      {.name = "normal_epoch_scheduler", .trainer = epochs2, .scheduler = kEpoch},
      {.name = "accumulate_tail",
       .train_batches = 5,
       .trainer = {.max_epochs = 1, .accumulate_grad_batches = 2},
       .scheduler = kStep},
      {.name = "accumulate_val_mid_window",
       .train_batches = 3,
       .trainer = {.max_epochs = 1,
                   .val_check_interval = every_n_batches(1),
                   .accumulate_grad_batches = 2}},
      {.name = "clipping", .trainer = {.max_epochs = 1, .gradient_clip_val = 1.0}},
      {.name = "manual", .manual_optimizers = 1},
      {.name = "manual_two_optimizers", .manual_optimizers = 2},
      {.name = "resume_epoch_end",
       .trainer = epochs2,
       .scheduler = kStep,
       .before = epochs1,
       .resume_from = file},
      {.name = "resume_epoch_end_max_steps",
       .trainer = {.max_steps = 4},
       .scheduler = kStep,
       .before = epochs1,
       .resume_from = file},
      {.name = "resume_mid_epoch",
       .train_batches = 4,
       .checkpoint = every_two_steps,
       .scheduler = kStep,
       .before = epochs1,
       .resume_from = file},
      {.name = "exception", .train_batches = 3, .raise_at = 1},
      {.name = "validate", .val_batches = {2}, .calls = {HookCall::kValidate}},
      {.name = "validate_ckpt",
       .val_batches = {2},
       .calls = {HookCall::kValidate},
       .before = epochs1,
       .resume_from = file},
      {.name = "test", .val_batches = {2}, .calls = {HookCall::kTest}},
      {.name = "predict", .val_batches = {2}, .calls = {HookCall::kPredict}},
      {.name = "no_sanity_check", .trainer = {.max_epochs = 1, .num_sanity_val_steps = 0}},
      {.name = "save_every_n_steps", .train_batches = 5, .checkpoint = every_two_steps},
      {.name = "val_check_interval",
       .train_batches = 5,
       .trainer = {.max_epochs = 1, .val_check_interval = every_n_batches(2)}},
      {.name = "two_val_loaders", .val_batches = {1, 2}},
      {.name = "skip_epoch", .train_batches = 3, .scheduler = kEpoch, .skip_at = 1},
      {.name = "none_step", .train_batches = 3, .scheduler = kStep, .none_at = 1},
      {.name = "should_stop",
       .train_batches = 4,
       .trainer = epochs2,
       .scheduler = kEpoch,
       .stop_at = 1},
      {.name = "plateau", .trainer = epochs2, .scheduler = kPlateauOnEpoch},
      {.name = "step_plateau", .scheduler = kPlateauOnStep},
      {.name = "lbfgs", .train_batches = 1, .lbfgs = true},
      {.name = "datamodule", .data_module = true},
      {.name = "fit_then_validate", .calls = {HookCall::kFit, HookCall::kValidate}},
      {.name = "max_steps", .train_batches = 4, .trainer = {.max_steps = 3}, .scheduler = kStep},
      {.name = "limit_val_batches_0",
       .trainer = {.max_epochs = 1, .limit_val_batches = batches(0)}},
      {.name = "check_val_every_n_epoch",
       .trainer = {.max_epochs = 3, .check_val_every_n_epoch = 2}},
  };
}

struct Golden {
  Lines events;
  std::int64_t global_step = -1;
  std::int64_t epoch = -1;
};

Golden read_golden(const std::string& name) {
  std::ifstream stream(std::string(FULMEN_TEST_DATA_DIR) + "/" + name + ".txt");
  EXPECT_TRUE(stream.good()) << name;
  Golden golden;
  bool head = true;
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("# ----")) head = false;
    if (!head) golden.events.push_back(line);
    constexpr const char* kCounters = "# after: global_step=%ld current_epoch=%ld";
    if (head && line.starts_with("# after:")) {
      EXPECT_EQ(std::sscanf(line.c_str(), kCounters, &golden.global_step, &golden.epoch), 2)
          << line;
    }
  }
  return golden;
}

Lines split(const std::string& text) {
  Lines words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// `pattern` with its # replaced.
std::string filled(std::string pattern, const std::string& number) {
  if (const auto at = pattern.find('#'); at != std::string::npos) pattern.replace(at, 1, number);
  return pattern;
}

/// The number that makes the events at `at` equal the pattern; "" if it has no #; empty if they
/// differ.
std::optional<std::string> match(const Lines& events, std::size_t at, const Lines& pattern) {
  if (at + pattern.size() > events.size()) return {};
  std::string number;
  if (const auto hash = pattern[0].find('#'); hash != std::string::npos) {
    const auto close = events[at].find(')', std::min(hash, events[at].size()));
    if (close == std::string::npos) return {};
    number = events[at].substr(hash, close - hash);
  }
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (events[at + i] != filled(pattern[i], number)) return {};
  }
  return number;
}

/// Returns how often the difference occurred.
int apply(const Difference& difference, const std::string& name, Lines& events) {
  if (!difference.cases.empty() && !difference.cases.contains(name)) return 0;
  const auto from = split(difference.lightning), to = split(difference.fulmen);
  Lines result;
  int count = 0;
  for (std::size_t i = 0; i < events.size();) {
    const auto number = match(events, i, from);
    if (!number) {
      result.push_back(events[i++]);
      continue;
    }
    ++count;
    for (const auto& event : to) result.push_back(filled(event, *number));
    i += from.size();
  }
  events = std::move(result);
  return count;
}

/// The first difference with what is around it.
std::string describe(const Lines& expected, const Lines& actual) {
  std::size_t i = 0;
  while (i < expected.size() && i < actual.size() && expected[i] == actual[i]) ++i;
  std::string text = "first difference at event " + std::to_string(i) + "\n";
  for (std::size_t j = i < 4 ? 0 : i - 4; j < i; ++j) text += "        both: " + expected[j] + "\n";
  for (std::size_t j = i; j < i + 8; ++j) {
    text += "    expected: " + (j < expected.size() ? expected[j] : "-") +
            "  |  got: " + (j < actual.size() ? actual[j] : "-") + "\n";
  }
  return text;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "fulmen-hooks-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

class HookOrder : public testing::TestWithParam<HookCase> {};

TEST_P(HookOrder, IsLightningsButForTheListedDifferences) {
  const auto& name = GetParam().name;
  auto golden = read_golden(name);
  for (const auto& difference : differences()) apply(difference, name, golden.events);
  for (const auto& difference : counter_differences()) {
    if (difference.name != name) continue;
    golden.global_step = difference.global_step;
    golden.epoch = difference.epoch;
  }
  TemporaryFolder folder;
  const auto record = record_hooks(GetParam(), folder.path());
  EXPECT_TRUE(record.events == golden.events) << describe(golden.events, record.events);
  EXPECT_EQ(record.progress.global_step, golden.global_step);
  EXPECT_EQ(record.progress.epoch, golden.epoch);
}

INSTANTIATE_TEST_SUITE_P(Golden, HookOrder, testing::ValuesIn(all_cases()), [](const auto& test) {
  return test.param.name;
});

TEST(HookOrderTable, HasNoDifferenceThatDoesNotOccur) {
  std::vector<int> used(differences().size(), 0);
  for (const auto& hook_case : all_cases()) {
    auto golden = read_golden(hook_case.name);
    for (std::size_t i = 0; i < used.size(); ++i)
      used[i] += apply(differences()[i], hook_case.name, golden.events);
    for (const auto& difference : counter_differences()) {
      if (difference.name != hook_case.name) continue;
      EXPECT_FALSE(difference.global_step == golden.global_step && difference.epoch == golden.epoch)
          << difference.name;
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i)
    EXPECT_GT(used[i], 0) << i << ": " << differences()[i].title;
}

TEST(HookOrderTable, IsInTheDocumentation) {
  std::ifstream stream(std::string(FULMEN_TEST_DATA_DIR) + "/../../../docs/differences.md");
  ASSERT_TRUE(stream.good());
  std::stringstream text;
  text << stream.rdbuf();
  const auto expect_there = [&](const std::string& title) {
    EXPECT_NE(text.str().find("**" + title + "**"), std::string::npos) << title;
  };
  for (const auto& difference : differences()) expect_there(difference.title);
  for (const auto& difference : counter_differences()) expect_there(difference.title);
}

TEST(HookOrderTable, HasACaseForEveryGoldenFile) {
  std::set<std::string> files, names;
  for (const auto& entry : fs::directory_iterator(FULMEN_TEST_DATA_DIR)) {
    if (entry.path().extension() == ".txt") files.insert(entry.path().stem().string());
  }
  for (const auto& hook_case : all_cases()) names.insert(hook_case.name);
  EXPECT_EQ(files, names);
}

}  // namespace
}  // namespace fulmen
