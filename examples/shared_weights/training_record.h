#pragma once

#include <fulmen/fulmen.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace heat {

/// What two runs are compared by.
struct TrainingRecord {
  std::vector<double> losses;  ///< Of the whole domain and all samples of each step.
  std::vector<double> norms;   ///< Of all gradients of each step, before clipping.
  /// Of the first step, before clipping.
  std::map<std::string, std::vector<double>> gradients;
};

inline boost::json::array to_json(const std::vector<double>& numbers) {
  boost::json::array result;
  for (const double number : numbers) result.push_back(fulmen::double_to_json(number));
  return result;
}

inline std::vector<double> from_json(const boost::json::value& numbers) {
  std::vector<double> result;
  for (const auto& number : numbers.as_array())
    result.push_back(fulmen::json_to_double(number, "training record"));
  return result;
}

inline void write_record(const TrainingRecord& record, const std::filesystem::path& path) {
  boost::json::object gradients;
  for (const auto& [name, gradient] : record.gradients) gradients[name] = to_json(gradient);
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path);
  file << boost::json::object{{"losses", to_json(record.losses)},
                              {"norms", to_json(record.norms)},
                              {"gradients", gradients}};
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

inline TrainingRecord read_record(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  TrainingRecord record;
  try {
    const auto json = boost::json::parse(text);
    record.losses = from_json(json.at("losses"));
    record.norms = from_json(json.at("norms"));
    for (const auto& [name, gradient] : json.at("gradients").as_object())
      record.gradients[name] = from_json(gradient);
  } catch (const std::exception& error) {
    throw std::runtime_error(path.string() + " is not a record of this program: " + error.what());
  }
  return record;
}

/// NaN if a difference is.
inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size())
    throw std::invalid_argument("the runs do not have equally many steps or weights");
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

inline double largest_difference(const std::map<std::string, std::vector<double>>& a,
                                 const std::map<std::string, std::vector<double>>& b) {
  if (a.size() != b.size()) throw std::invalid_argument("the runs do not have the same weights");
  double largest = 0;
  for (const auto& [name, gradient] : a) {
    const auto found = b.find(name);
    if (found == b.end()) throw std::invalid_argument("only one of the runs has " + name);
    const double difference = largest_difference(gradient, found->second);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

/// Prints both runs side by side. False if they are not the same to rounding in float64.
inline bool print_comparison(const TrainingRecord& left,
                             const std::string& left_name,
                             const TrainingRecord& right,
                             const std::string& right_name) {
  const double gradient = largest_difference(left.gradients, right.gradients);
  const double loss = largest_difference(left.losses, right.losses);
  const double norm = largest_difference(left.norms, right.norms);
  std::printf("left: %s, right: %s\n", left_name.c_str(), right_name.c_str());
  std::puts(" step  loss                              norm of the gradient");
  for (std::size_t i = 0; i < left.losses.size(); ++i) {
    std::printf("%5zu  %.12f  %.12f    %.12f  %.12f\n",
                i,
                left.losses[i],
                right.losses[i],
                left.norms[i],
                right.norms[i]);
  }
  std::printf("largest difference: raw gradients of the first step %.2e, losses %.2e, norms %.2e\n",
              gradient,
              loss,
              norm);
  return gradient <= 1e-12 && loss <= 1e-6 && norm <= 1e-6;
}

}  // namespace heat
