#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fulmen/core/checkpoint/safetensors.h"
#include "fulmen/core/checkpoint/weights.h"
#include "tests/core/checkpoint/support.h"

#ifndef FULMEN_SOURCE_DIR
#define FULMEN_SOURCE_DIR "."
#endif

namespace fulmen {
namespace {

/// Runs Python scripts with the safetensors package; the tests skip where there is none.
class PythonInterop : public testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("FULMEN_TEST_PYTHON");
    python_ = given != nullptr ? given : FULMEN_SOURCE_DIR "/.venv/bin/python";
    if (run("import numpy, safetensors.numpy").second != 0) {
      GTEST_SKIP() << python_ << " has no safetensors and numpy; set FULMEN_TEST_PYTHON";
    }
  }

  /// What the script prints, and its exit status. `path` is the file in the script.
  std::pair<std::string, int> run(const std::string& script) const {
    write_bytes(scratch_ / "script.py", script);
    const std::string command = "'" + python_ + "' '" + (scratch_ / "script.py").string() + "' '" +
                                path_.string() + "' 2>&1";
    FILE* pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return {"popen failed", -1};
    std::string output;
    char buffer[512];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
      output.append(buffer, n);
    }
    const int status = ::pclose(pipe);
    return {output, status};
  }

  ScratchDirectory scratch_;
  std::filesystem::path path_ = scratch_ / "w.safetensors";
  std::string python_;
};

TEST_F(PythonInterop, PythonReadsOurFile) {
  write_safetensors(path_,
                    {{"f64", torch::tensor({1.5, -2.0}, torch::kFloat64)},
                     {"f32", torch::arange(6, torch::kFloat32).view({2, 3}).t()},
                     {"f16", torch::tensor({0.5}, torch::kFloat16)},
                     {"i64", torch::tensor({-5}, torch::kInt64)},
                     {"i16", torch::tensor({-300, 7}, torch::kInt16)},
                     {"u8", torch::tensor({255, 1, 2}, torch::kUInt8)},
                     {"bool", torch::tensor({true, false, true})},
                     {"scalar", torch::tensor(3.25f)},
                     {"empty", torch::empty({0, 4})}},
                    {{"who", "fulmen"}});
  const auto [output, status] = run(R"(
import sys, safetensors, safetensors.numpy
tensors = safetensors.numpy.load_file(sys.argv[1])
for name in sorted(tensors):
    print(name, tensors[name].dtype, tensors[name].shape, tensors[name].tolist())
with safetensors.safe_open(sys.argv[1], "numpy") as f:
    print(f.metadata())
)");
  EXPECT_EQ(status, 0);
  EXPECT_EQ(output,
            "bool bool (3,) [True, False, True]\n"
            "empty float32 (0, 4) []\n"
            "f16 float16 (1,) [0.5]\n"
            "f32 float32 (3, 2) [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]\n"
            "f64 float64 (2,) [1.5, -2.0]\n"
            "i16 int16 (2,) [-300, 7]\n"
            "i64 int64 (1,) [-5]\n"
            "scalar float32 () 3.25\n"
            "u8 uint8 (3,) [255, 1, 2]\n"
            "{'who': 'fulmen'}\n");
}

TEST_F(PythonInterop, PythonReadsEveryDtypeThatWeWrite) {
  TensorMap tensors;
  for (const auto dtype : {torch::kFloat64,
                           torch::kFloat32,
                           torch::kFloat16,
                           torch::kBFloat16,
                           torch::kInt64,
                           torch::kInt32,
                           torch::kInt16,
                           torch::kInt8,
                           torch::kUInt8,
                           torch::kUInt16,
                           torch::kUInt32,
                           torch::kUInt64,
                           torch::kBool,
                           torch::kComplexFloat,
                           torch::kFloat8_e4m3fn,
                           torch::kFloat8_e5m2}) {
    tensors[c10::toString(dtype)] = torch::ones({3}).to(dtype);
  }
  write_safetensors(path_, tensors);
  const auto [output, status] = run(R"(
import sys, safetensors
print(len(safetensors.deserialize(open(sys.argv[1], "rb").read())))
)");
  EXPECT_EQ(output, std::to_string(tensors.size()) + "\n");
  EXPECT_EQ(status, 0);
}

TEST_F(PythonInterop, PythonReadsTheWeightsOfACheckpoint) {
  torch::nn::Linear linear(2, 1);
  load_into({{"weight", torch::tensor({{1.0f, 2.0f}})}, {"bias", torch::tensor({0.5f})}},
            {},
            named_tensors(*linear),
            "test");
  write_checkpoint(scratch_ / "epoch=1", {.model = module_state(*linear).tensors});
  path_ = scratch_ / "epoch=1" / "model.safetensors";
  const auto [output, status] = run(R"(
import sys, safetensors.numpy
print({k: v.tolist() for k, v in sorted(safetensors.numpy.load_file(sys.argv[1]).items())})
)");
  EXPECT_EQ(output, "{'bias': [0.5], 'weight': [[1.0, 2.0]]}\n");
  EXPECT_EQ(status, 0);
}

TEST_F(PythonInterop, WeReadPythonsFile) {
  const auto [output, status] = run(R"(
import sys, numpy as np, safetensors.numpy
safetensors.numpy.save_file({
    "weight": np.array([[1, 2, 3]], np.float32), "bias": np.array([0.5], np.float32),
}, sys.argv[1])
)");
  ASSERT_EQ(status, 0) << output;
  torch::nn::Linear linear(3, 1);
  load_weights(*linear, path_);
  EXPECT_TRUE(linear->weight.equal(torch::tensor({{1.0f, 2.0f, 3.0f}})));
  EXPECT_TRUE(linear->bias.equal(torch::tensor({0.5f})));
}

TEST_F(PythonInterop, WeReadEveryKindThatPythonWrites) {
  const auto [output, status] = run(R"(
import sys, numpy as np, safetensors.numpy
kinds = "float64 float32 float16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex64"
tensors = {k: np.arange(3).astype(k) for k in kinds.split()}
tensors["scalar"] = np.array(7, np.float32)
tensors["empty"] = np.zeros((0, 2), np.float32)
safetensors.numpy.save_file(tensors, sys.argv[1], {"a": "b"})
)");
  ASSERT_EQ(status, 0) << output;
  const auto tensors = read_safetensors(path_);
  EXPECT_EQ(tensors.size(), 15u);
  EXPECT_TRUE(tensors.at("float16").equal(torch::arange(3).to(torch::kFloat16)));
  EXPECT_TRUE(tensors.at("uint32").equal(torch::arange(3).to(torch::kUInt32)));
  EXPECT_TRUE(tensors.at("complex64").equal(torch::arange(3).to(torch::kComplexFloat)));
  EXPECT_TRUE(tensors.at("bool").equal(torch::tensor({false, true, true})));
  EXPECT_TRUE(tensors.at("scalar").equal(torch::tensor(7.0f)));
  EXPECT_EQ(tensors.at("empty").sizes(), (at::IntArrayRef{0, 2}));
}

}  // namespace
}  // namespace fulmen
