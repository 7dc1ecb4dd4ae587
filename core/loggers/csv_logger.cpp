#include "fulmen/core/loggers/csv_logger.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/loggers/csv_text.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using detail::append_csv_cell;
using detail::split_csv_record;
using detail::split_csv_records;
using std::filesystem::path;

constexpr std::string_view kWhere = "CSVLogger";
constexpr std::string_view kVersionPrefix = "version_";

[[noreturn]] void fail_with_reason(const char* action, const path& file, std::error_code reason) {
  fail<Error>(kWhere,
              "cannot ",
              action,
              " '",
              file.string(),
              "': ",
              reason.message(),
              ". Free space or fix the permissions, or choose another save_dir.");
}

std::error_code last_error() {
  return {errno, std::generic_category()};
}

class Descriptor {
 public:
  Descriptor(const path& file, int flags) : fd_(::open(file.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail_with_reason("open", file, last_error());
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view text, const path& file) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_reason("write", file, last_error());
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// The old text or the new one is there at any moment.
void replace_file(const path& file, std::string_view text) {
  const path temporary = file.string() + ".tmp";
  try {
    const Descriptor out(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    write_all(out.get(), text, temporary);
    std::error_code error;
    std::filesystem::rename(temporary, file, error);
    if (error) fail_with_reason("replace", file, error);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

/// Text that was written only in part is taken back, so that it can be written again.
void append_to_file(const path& file, std::string_view text) {
  const Descriptor out(file, O_WRONLY | O_APPEND);
  struct stat before {};
  if (::fstat(out.get(), &before) != 0) fail_with_reason("read the size of", file, last_error());
  try {
    write_all(out.get(), text, file);
  } catch (const Error&) {
    [[maybe_unused]] const int ignored = ::ftruncate(out.get(), before.st_size);
    throw;
  }
}

std::string read_file(const path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) fail_with_reason("read", file, last_error());
  return text;
}

std::int64_t next_version(const path& root) {
  std::int64_t next = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::int64_t number = 0;
    if (!name.starts_with(kVersionPrefix)) continue;
    const auto [stop, problem] =
        std::from_chars(name.data() + kVersionPrefix.size(), name.data() + name.size(), number);
    if (problem == std::errc() && stop == name.data() + name.size())
      next = std::max(next, number + 1);
  }
  return next;
}

/// Making a directory is atomic, so no two processes get the same one.
path claim_version(const path& root) {
  for (std::int64_t version = next_version(root);; ++version) {
    const path directory = root / (std::string(kVersionPrefix) + std::to_string(version));
    std::error_code error;
    if (std::filesystem::create_directory(directory, error)) return directory;
    if (error) fail_with_reason("make", directory, error);
  }
}

void make_directories(const path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) fail_with_reason("make", directory, error);
}

void append_number(double value, std::string& out) {
  std::array<char, 32> buffer;
  out.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
}

/// Rows of a file with the columns `old_names`, in the order of `names`.
void append_old_rows(const std::string& file,
                     const std::vector<std::string>& old_names,
                     const std::vector<std::string>& names,
                     std::string& out) {
  std::vector<std::size_t> source;
  for (const auto& name : names) {
    const auto at = std::ranges::find(old_names, name);
    source.push_back(static_cast<std::size_t>(at - old_names.begin()) +
                     1);  // Past the end: a new column.
  }
  const auto records = split_csv_records(file);
  for (std::size_t i = 1; i < records.size(); ++i) {
    const auto cells = split_csv_record(records[i]);
    append_csv_cell(cells.front(), out);
    for (const auto at : source) {
      out += ',';
      if (at < cells.size()) append_csv_cell(cells[at], out);
    }
    out += '\n';
  }
}

bool is_plain_folder(const std::string& name) {
  return name != "." && name != ".." && name.find('/') == std::string::npos;
}

}  // namespace

std::shared_ptr<CSVLogger> CSVLogger::make(CSVLoggerOptions options) {
  if (!is_plain_folder(options.name)) {
    fail<ConfigError>(kWhere,
                      "name must be the name of one folder, got '",
                      options.name,
                      "'. Put the rest into save_dir.");
  }
  if (options.version && (options.version->empty() || !is_plain_folder(*options.version))) {
    fail<ConfigError>(
        kWhere, "version must be the name of one folder, got '", *options.version, "'.");
  }
  if (options.flush_every_n < 1) {
    fail<ConfigError>(kWhere, "flush_every_n must be at least 1, got ", options.flush_every_n, ".");
  }
  return std::shared_ptr<CSVLogger>(new CSVLogger(std::move(options)));
}

CSVLogger::~CSVLogger() {
  try {
    save();
  } catch (const std::exception&) {
    // finalize() has reported it, or the run is being torn down by another error.
  }
}

path CSVLogger::log_dir() const {
  if (!log_dir_.empty()) return log_dir_;
  const path root = options_.name.empty() ? options_.save_dir : options_.save_dir / options_.name;
  make_directories(root);
  if (!options_.version) return log_dir_ = claim_version(root);
  make_directories(root / *options_.version);
  return log_dir_ = root / *options_.version;
}

std::string CSVLogger::version() const {
  return log_dir().filename().string();
}

void CSVLogger::log_metrics(const std::map<std::string, double>& metrics, std::int64_t step) {
  if (metrics.empty()) return;
  for (const auto& [name, value] : metrics) {
    if (name == "step") continue;  // The argument is the step.
    auto column = columns_.find(name);
    if (column == columns_.end()) column = columns_.emplace(name, columns_.size()).first;
    cells_.push_back({column->second, value});
  }
  rows_.push_back({step, cells_.size()});
  if (std::ssize(rows_) >= options_.flush_every_n) save();
}

void CSVLogger::log_hyperparameters(const boost::json::object& hyperparameters) {
  std::string text = "{";
  const char* separator = "\n  ";
  for (const auto& [key, value] : hyperparameters) {
    text += separator + boost::json::serialize(key) + ": " + boost::json::serialize(value);
    separator = ",\n  ";
  }
  replace_file(log_dir() / "hparams.json", text + "\n}\n");
}

void CSVLogger::after_save_checkpoint(const path&) {
  save();
}

void CSVLogger::save() {
  if (rows_.empty()) return;
  if (!opened_) open();
  if (header_.size() < columns_.size()) {
    widen();
  } else {
    append_to_file(metrics_path(), buffered_text(file_order()));
  }
  cells_.clear();
  rows_.clear();
}

void CSVLogger::open() {
  const path file = metrics_path();
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (std::filesystem::exists(status)) {
    if (!std::filesystem::is_regular_file(status)) {
      fail<Error>(kWhere,
                  "'",
                  file.string(),
                  "' is not a regular file. Move it away, or choose another version.");
    }
    const std::string text = read_file(file);
    const auto records = split_csv_records(text);
    if (!records.empty()) {
      auto names = split_csv_record(records.front());
      if (names.front() != "step") {
        fail<Error>(kWhere,
                    "'",
                    file.string(),
                    "' does not start with a 'step' column, so CSVLogger did not write it. "
                    "Move it away, or choose another version.");
      }
      header_.assign(names.begin() + 1, names.end());
      for (const auto& name : header_) columns_.emplace(name, columns_.size());
    }
    const std::size_t whole =
        records.empty() ? 0
                        : static_cast<std::size_t>(records.back().data() + records.back().size() +
                                                   1 - text.data());
    if (whole < text.size() && ::truncate(file.c_str(), static_cast<off_t>(whole)) != 0) {
      fail_with_reason("cut", file, last_error());
    }
  }
  opened_ = true;
}

std::vector<std::size_t> CSVLogger::file_order() const {
  std::vector<std::size_t> order;
  for (const auto& name : header_) order.push_back(columns_.find(name)->second);
  return order;
}

std::string CSVLogger::buffered_text(const std::vector<std::size_t>& order) const {
  std::string text;
  std::vector<const double*> values(columns_.size());
  std::size_t begin = 0;
  for (const auto& row : rows_) {
    std::fill(values.begin(), values.end(), nullptr);
    for (; begin < row.end; ++begin) values[cells_[begin].column] = &cells_[begin].value;
    text += std::to_string(row.step);
    for (const auto column : order) {
      text += ',';
      if (values[column] != nullptr) append_number(*values[column], text);
    }
    text += '\n';
  }
  return text;
}

void CSVLogger::widen() {
  const path file = metrics_path();
  std::vector<std::string> names;
  for (const auto& [name, column] : columns_) names.push_back(name);
  std::stable_partition(
      names.begin(), names.end(), [](const auto& name) { return name == "epoch"; });

  std::string text = "step";
  for (const auto& name : names) {
    text += ',';
    append_csv_cell(name, text);
  }
  text += '\n';
  if (!header_.empty()) append_old_rows(read_file(file), header_, names, text);
  std::swap(header_, names);
  try {
    replace_file(file, text + buffered_text(file_order()));
  } catch (...) {
    std::swap(header_, names);
    throw;
  }
}

}  // namespace fulmen
