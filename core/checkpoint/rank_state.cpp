#include "core/checkpoint/rank_state.h"

#include <cstring>

#include "core/checkpoint/json_text.h"
#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "the state of a rank";

/// A file in memory.
class MemoryFile final : public WritableFile {
 public:
  void write(const void* data, std::size_t size) override {
    bytes.append(static_cast<const char*>(data), size);
  }
  void sync() override {}
  void close() override {}
  std::string bytes;
};

}  // namespace

// Eight bytes with the length of a JSON text, the text, and a safetensors file.
std::string pack_rank_state(const TensorMap& rank_state, const boost::json::object& rank_values) {
  MemoryFile file;
  const auto sums = write_safetensors(file, rank_state);
  boost::json::object tensors;
  for (const auto& [name, sum] : sums.tensors) tensors[name] = sum;
  const auto text = detail::json_text({{"values", rank_values},
                                       {"size", sums.size},
                                       {"header", sums.header},
                                       {"tensors", std::move(tensors)}});
  const std::uint64_t length = text.size();
  std::string packed(sizeof length, '\0');
  std::memcpy(packed.data(), &length, sizeof length);
  return packed + text + file.bytes;
}

namespace detail {

RankPart unpack_rank_state(std::string_view packed) {
  std::uint64_t length = 0;
  if (packed.size() >= sizeof length) std::memcpy(&length, packed.data(), sizeof length);
  if (packed.size() < sizeof length || length > packed.size() - sizeof length) {
    fail<CheckpointError>(kWhere, "came torn: ", packed.size(), " bytes.");
  }
  const auto text = packed.substr(sizeof length, length);
  const auto header = parse_json(std::string(text), std::string(kWhere));
  RankPart part{.tensors = packed.substr(sizeof length + length),
                .sums = {},
                .values = require_object(header, "values", kWhere)};
  part.sums.size = header.at("size").to_number<std::uint64_t>();
  part.sums.header = header.at("header").to_number<std::uint32_t>();
  for (const auto& [name, sum] : require_object(header, "tensors", kWhere))
    part.sums.tensors[std::string(name)] = sum.to_number<std::uint32_t>();
  if (part.sums.size != part.tensors.size()) {
    fail<CheckpointError>(kWhere,
                          "came torn: ",
                          part.tensors.size(),
                          " bytes of tensors, but ",
                          part.sums.size,
                          " were made.");
  }
  return part;
}

}  // namespace detail
}  // namespace fulmen
