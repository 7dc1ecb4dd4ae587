#include "fulmen/core/data/batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "fulmen/core/support/error.h"
#include "tests/core/data/data_helpers.h"

namespace molecules {

struct Graph {
  torch::Tensor nodes;  // (N, 3)
  torch::Tensor edges;  // (E, 2)
  std::string name;
  std::int64_t graphs = 0;
};

void for_each_tensor(Graph& graph, const fulmen::TensorVisitor& visit) {
  visit(graph.nodes);
  visit(graph.edges);
}
std::int64_t batch_rows(const Graph& graph) {
  return graph.graphs;
}

struct Pair {
  torch::Tensor left;
  torch::Tensor right;
};
void for_each_tensor(Pair& pair, const fulmen::TensorVisitor& visit) {
  visit(pair.left);
  visit(pair.right);
}

}  // namespace molecules

namespace fulmen {
namespace {

using torch::Tensor;

template <class B>
std::size_t count_tensors(B batch) {
  std::size_t count = 0;
  BatchView(batch).for_each_tensor([&](Tensor&) { ++count; });
  return count;
}

// Moving to the meta device proves that each tensor was replaced.
template <class B>
void expect_moves(B batch, std::size_t tensors) {
  const BatchView view(batch);
  view.to(c10::kMeta);
  std::size_t moved = 0;
  view.for_each_tensor([&](Tensor& tensor) { moved += tensor.is_meta() ? 1 : 0; });
  EXPECT_EQ(moved, tensors) << c10::demangle(typeid(B).name());
}

TEST(Batch, UnpacksIntoAsManyTensorsAsItHolds) {
  const Batch batch{{torch::tensor(1), torch::tensor(2)}};
  const auto [x, y] = batch.unpack<2>();
  EXPECT_EQ(x.item<int>(), 1);
  EXPECT_EQ(y.item<int>(), 2);
  expect_says(message_of<DataError>([&] { batch.unpack<3>(); }), {"unpack<3>", "2 tensors"});
}

TEST(BatchView, MovesEveryTensorOfEveryKindOfBatch) {
  const auto x = torch::zeros({2});
  expect_moves(x, 1);
  expect_moves(Batch{{x, x, x}}, 3);
  expect_moves(std::vector<Tensor>{x, x}, 2);
  expect_moves(std::array<Tensor, 2>{x, x}, 2);
  expect_moves(std::tuple<Tensor, std::vector<Tensor>, int>{x, {x, x}, 4}, 3);
  expect_moves(std::pair<Tensor, std::string>{x, "name"}, 1);
  expect_moves(std::map<std::string, Tensor>{{"a", x}, {"b", x}}, 2);
  expect_moves(std::map<std::string, std::vector<Tensor>>{{"a", {x, x}}, {"b", {x}}}, 3);
  expect_moves(std::optional<Tensor>(x), 1);
  expect_moves(torch::data::Example<>(x, x), 2);
  expect_moves(torch::data::Example<Tensor, std::int64_t>(x, 3), 1);
  expect_moves(torch::data::TensorExample(x), 1);
  expect_moves(std::vector<torch::data::Example<>>{{x, x}, {x, x}}, 4);
  expect_moves(molecules::Graph{x, x, "water", 1}, 2);
  expect_moves(std::vector<molecules::Pair>{{x, x}, {x, x}}, 4);
}

TEST(BatchView, PassesOverWhatIsNoTensor) {
  EXPECT_EQ(count_tensors(std::optional<Tensor>()), 0U);
  EXPECT_EQ(count_tensors(std::vector<bool>{true, false}), 0U);
  EXPECT_EQ(count_tensors(std::tuple<int, std::string, std::vector<double>>()), 0U);
}

TEST(BatchView, LeavesUndefinedTensorsAlone) {
  Batch batch{{Tensor(), torch::zeros({2})}};
  BatchView(batch).to(c10::kMeta);
  EXPECT_FALSE(batch.tensors[0].defined());
  EXPECT_TRUE(batch.tensors[1].is_meta());
  EXPECT_EQ(BatchView(batch).rows(), 2);
}

TEST(BatchView, DoesNotCopyATensorThatIsThereAlready) {
  auto x = torch::zeros({2});
  const auto* data = x.data_ptr();
  BatchView(x).to(c10::kCPU);
  EXPECT_EQ(x.data_ptr(), data);
}

TEST(BatchView, CountsRowsInDimZeroOfItsTensors) {
  // Fault 24: a map of two tensors of 5 rows has 5 rows, not 2.
  std::map<std::string, Tensor> map{{"a", torch::zeros({5, 3})}, {"b", torch::zeros({5})}};
  EXPECT_EQ(BatchView(map).rows(), 5);
  Batch with_scalar{{torch::zeros({}), torch::zeros({4, 2})}};
  EXPECT_EQ(BatchView(with_scalar).rows(), 4);
  auto scalar = torch::zeros({});
  EXPECT_EQ(BatchView(scalar).rows(), 1);
  auto empty = torch::zeros({0, 3});
  EXPECT_EQ(BatchView(empty).rows(), 0);
}

TEST(BatchView, RefusesToGuessTheRowsOfTensorsThatDisagree) {
  molecules::Pair pair{torch::zeros({5, 2}), torch::zeros({3, 2})};
  expect_says(message_of<DataError>([&] { BatchView(pair).rows(); }),
              {"molecules::Pair", "5 and 3 rows", "batch_rows", "batch_size"});
}

TEST(BatchView, AsksTheUsersTypeForItsRows) {
  molecules::Graph graph{torch::zeros({30, 3}), torch::zeros({58, 2}), "proteins", 4};
  EXPECT_EQ(BatchView(graph).rows(), 4);
}

TEST(BatchView, GivesTheBatchOnlyAsItsOwnType) {
  Batch batch{{torch::zeros({1})}};
  const BatchView view(batch);
  EXPECT_EQ(view.get_if<Batch>(), &batch);
  EXPECT_EQ(view.get_if<Tensor>(), nullptr);
  EXPECT_EQ(view.type(), typeid(Batch));
  EXPECT_EQ(BatchView().type(), typeid(void));
  EXPECT_EQ(BatchView().rows(), 0);
}

TEST(AnyBatch, DestroysWhatItOwnsOnce) {
  const auto x = torch::zeros({1});
  ASSERT_EQ(x.use_count(), 1U);
  {
    AnyBatch batch(Batch{{x, x}});
    EXPECT_EQ(x.use_count(), 3U);
    AnyBatch other = std::move(batch);
    EXPECT_FALSE(batch.has_value());  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(x.use_count(), 3U);
    other = AnyBatch(std::vector<Tensor>{x});
    EXPECT_EQ(x.use_count(), 2U);
    other.reset();
    EXPECT_EQ(x.use_count(), 1U);
  }
  EXPECT_EQ(x.use_count(), 1U);
}

}  // namespace
}  // namespace fulmen
