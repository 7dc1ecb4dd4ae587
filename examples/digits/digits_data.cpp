#include "digits_data.h"

#include <torch/torch.h>
#include <zlib.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/support/error.h"

namespace digits {
namespace {

constexpr int kPixels = 64;
constexpr int kMaxPixel = 16;
constexpr int kMaxLabel = 9;

/// Lines of a gzipped text file.
class GzipLines {
 public:
  explicit GzipLines(const std::filesystem::path& file) : name_(file.string()) {
    if (std::filesystem::is_directory(file)) {
      fulmen::fail<fulmen::DataError>(name_, "this is a directory, a gzipped CSV file is needed.");
    }
    file_.reset(gzopen(name_.c_str(), "rb"));
    if (file_ == nullptr) {
      fulmen::fail<fulmen::DataError>(
          name_,
          "cannot be opened (",
          std::strerror(errno),
          "). scripts/quickstart.sh fetches the data; --data names another file.");
    }
  }

  std::optional<std::string> next() {
    const bool more = gzgets(file_.get(), buffer_, sizeof buffer_) != nullptr;
    int code = Z_OK;
    const char* reason = gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END) {
      fulmen::fail<fulmen::DataError>(name_, "is damaged (", reason, "). Fetch it again.");
    }
    if (!more) return {};
    ++line_;
    std::string line(buffer_);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    return line;
  }

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fulmen::fail<fulmen::DataError>(name_, "line ", line_, ": ", parts...);
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };

  std::string name_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::int64_t line_ = 0;
  char buffer_[1024];
};

/// Takes the next number off the front of `line`.
int take_number(std::string_view& line, int max, const GzipLines& where) {
  int value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || value < 0 || value > max) {
    where.fail_here("expected a whole number from 0 to ",
                    max,
                    ", got \"",
                    line.substr(0, line.find(',')),
                    "\".");
  }
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (!line.empty() && line.front() == ',') line.remove_prefix(1);
  return value;
}

}  // namespace

fulmen::TensorDataset read_digits(const std::filesystem::path& file) {
  GzipLines lines(file);
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  while (const auto line = lines.next()) {
    std::string_view rest = *line;
    for (int i = 0; i < kPixels; ++i) {
      pixels.push_back(static_cast<float>(take_number(rest, kMaxPixel, lines)) / kMaxPixel);
    }
    labels.push_back(take_number(rest, kMaxLabel, lines));
    if (!rest.empty())
      lines.fail_here("expected ", kPixels, " pixels and a label, but more follows.");
  }
  if (labels.empty()) fulmen::fail<fulmen::DataError>(file.string(), "holds no samples.");
  return fulmen::tensor_dataset({torch::tensor(pixels).view({-1, 1, 8, 8}), torch::tensor(labels)});
}

}  // namespace digits
