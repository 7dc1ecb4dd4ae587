#include "fulmen/core/data/collate.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <variant>
#include <vector>

#include "fulmen/core/support/error.h"
#include "tests/core/data/data_helpers.h"

namespace robots {

struct Frame {
  torch::Tensor image;
  std::vector<torch::Tensor> joints;
  std::string robot;
};
void for_each_tensor(Frame& frame, const fulmen::TensorVisitor& visit) {
  visit(frame.image);
  for (auto& joint : frame.joints) visit(joint);
}

}  // namespace robots

namespace fulmen {
namespace {

using torch::Tensor;

template <class S>
auto collated(std::vector<S> samples) {
  return detail::collate(samples);
}

void expect_equal(const Tensor& actual, const Tensor& expected) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(actual, expected)) << actual << " against " << expected;
}

TEST(Collate, StacksTensorsAlongANewDimZero) {
  expect_equal(collated<Tensor>({torch::tensor({1, 2}), torch::tensor({3, 4})}),
               torch::tensor({{1, 2}, {3, 4}}));
}

TEST(Collate, MakesATensorOfNumbers) {
  expect_equal(collated<std::int64_t>({1, 2}), torch::tensor({1, 2}, torch::kLong));
  expect_equal(collated<int>({1, -2}), torch::tensor({1, -2}, torch::kLong));
  expect_equal(collated<float>({0.5F}), torch::tensor({0.5}, torch::kFloat));
  expect_equal(collated<double>({0.1}), torch::tensor({0.1}, torch::kDouble));
  expect_equal(collated<bool>({true, false}), torch::tensor({1, 0}, torch::kBool));
  expect_equal(collated<std::uint8_t>({255}), torch::tensor({255}, torch::kByte));
  enum class Color { kRed = 3 };
  expect_equal(collated<Color>({Color::kRed}), torch::tensor({3}, torch::kLong));
}

TEST(Collate, MakesAMatrixOfVectorsOfNumbers) {
  expect_equal(collated<std::vector<float>>({{1, 2, 3}, {4, 5, 6}}),
               torch::tensor({{1.F, 2.F, 3.F}, {4.F, 5.F, 6.F}}));
  expect_equal(collated<std::array<std::uint8_t, 2>>({{{1, 2}}}),
               torch::tensor({{1, 2}}, torch::kByte));
  expect_equal(collated<std::vector<bool>>({{true, false}}), torch::tensor({{1, 0}}, torch::kBool));
  EXPECT_EQ(collated<std::vector<float>>({{}, {}}).sizes(), (std::vector<std::int64_t>{2, 0}));
}

TEST(Collate, GoesThroughTuplesPairsArraysAndExamples) {
  const auto x = torch::tensor({1.F});
  auto [tensor, number, name] =
      collated<std::tuple<Tensor, int, std::string>>({{x, 7, "a"}, {x, 8, "b"}});
  EXPECT_EQ(tensor.sizes(), (std::vector<std::int64_t>{2, 1}));
  expect_equal(number, torch::tensor({7, 8}, torch::kLong));
  EXPECT_EQ(name, (std::vector<std::string>{"a", "b"}));

  const auto pair = collated<std::pair<Tensor, std::int64_t>>({{x, 1}, {x, 2}, {x, 3}});
  static_assert(std::is_same_v<decltype(pair), const std::pair<Tensor, Tensor>>);
  EXPECT_EQ(pair.second.size(0), 3);

  const auto array = collated<std::array<Tensor, 2>>({{x, x + 1}, {x + 2, x + 3}});
  static_assert(std::is_same_v<decltype(array), const std::array<Tensor, 2>>);
  expect_equal(array[1], torch::tensor({{2.F}, {4.F}}));

  const auto example = collated<torch::data::Example<Tensor, std::int64_t>>({{x, 4}, {x, 5}});
  static_assert(std::is_same_v<decltype(example), const torch::data::Example<>>);
  expect_equal(example.target, torch::tensor({4, 5}, torch::kLong));
  EXPECT_EQ(collated<torch::data::TensorExample>({{x}, {x}}).data.size(0), 2);
}

TEST(Collate, GoesThroughVectorsMapsAndOptionals) {
  const auto x = torch::tensor({1});
  const auto vector = collated<std::vector<Tensor>>({{x, x + 1}, {x + 2, x + 3}, {x, x}});
  ASSERT_EQ(vector.size(), 2U);
  expect_equal(vector[0], torch::tensor({{1}, {3}, {1}}));

  const auto map = collated<std::unordered_map<std::string, Tensor>>(
      {{{"a", x}, {"b", x + 1}}, {{"b", x + 2}, {"a", x}}});
  static_assert(std::is_same_v<decltype(map), const std::map<std::string, Tensor>>);
  expect_equal(map.at("b"), torch::tensor({{2}, {3}}));

  EXPECT_EQ(collated<std::optional<Tensor>>({x, x})->size(0), 2);
  EXPECT_FALSE(collated<std::optional<Tensor>>({std::nullopt, std::nullopt}).has_value());
  const auto with_empty = collated<std::tuple<Tensor, std::monostate>>({{x, {}}, {x, {}}});
  static_assert(std::is_same_v<decltype(with_empty), const std::tuple<Tensor, std::monostate>>);
  EXPECT_EQ(std::get<0>(with_empty).size(0), 2);
}

TEST(Collate, StacksTheTensorsOfABatchAndOfAUsersStruct) {
  const auto x = torch::tensor({1});
  const auto batch = collated<Batch>({{{x, x + 1}}, {{x + 2, x + 3}}});
  ASSERT_EQ(batch.tensors.size(), 2U);
  expect_equal(batch.tensors[1], torch::tensor({{2}, {4}}));

  const auto frame =
      collated<robots::Frame>({{x, {x, x + 1}, "r2"}, {x + 2, {x + 3, x + 4}, "c3"}});
  expect_equal(frame.image, torch::tensor({{1}, {3}}));
  expect_equal(frame.joints[1], torch::tensor({{2}, {5}}));
  EXPECT_EQ(frame.robot, "r2");
}

TEST(Collate, LeavesTheSamplesTensorsUntouched) {
  const auto x = torch::tensor({1});
  collated<Batch>({{{x}}, {{x}}});
  EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{1}));
}

TEST(Collate, NamesTheSampleThatDoesNotFit) {
  const auto shape = [] {
    collated<Tensor>({torch::zeros({3}), torch::zeros({3}), torch::zeros({4})});
  };
  expect_says(message_of<DataError>(shape),
              {"one shape", "[3]", "sample 2", "[4]", "std::vector<Sample>"});
  const auto dtype = [] {
    collated<Tensor>({torch::zeros({3}), torch::zeros({3}, torch::kDouble)});
  };
  expect_says(message_of<DataError>(dtype), {"one dtype", "Float", "sample 1", "Double"});
  const auto length = [] { collated<std::vector<float>>({{1}, {1, 2}}); };
  expect_says(message_of<DataError>(length), {"different lengths", "sample 1"});
  const auto count = [] { collated<Batch>({{{torch::zeros({1})}}, {}}); };
  expect_says(message_of<DataError>(count), {"different numbers of tensors", "sample 1"});
  const auto keys = [] { collated<std::map<int, int>>({{{1, 1}}, {{2, 1}}}); };
  expect_says(message_of<DataError>(keys), {"different keys", "sample 1"});
  const auto optionals = [] { collated<std::optional<int>>({1, std::nullopt}); };
  expect_says(message_of<DataError>(optionals), {"some of them empty", "sample 1"});
  const auto undefined = [] { collated<Tensor>({torch::zeros({1}), Tensor()}); };
  expect_says(message_of<DataError>(undefined), {"undefined", "sample 1"});
}

}  // namespace
}  // namespace fulmen
