#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#ifndef FULMEN_TEST_DATA_DIR
#define FULMEN_TEST_DATA_DIR "tests/parity/golden"
#endif

namespace fulmen {

// The cases of a file that tests/parity/record_optimizers.py wrote.
inline boost::json::array golden_cases(const std::string& file) {
  std::ifstream stream(std::string(FULMEN_TEST_DATA_DIR) + "/" + file);
  EXPECT_TRUE(stream.good()) << file;
  std::stringstream text;
  text << stream.rdbuf();
  return boost::json::parse(text.str()).as_object().at("cases").as_array();
}

inline std::vector<double> numbers(const boost::json::value& list) {
  std::vector<double> result;
  for (const auto& value : list.as_array()) result.push_back(value.to_number<double>());
  return result;
}

inline double number(const boost::json::object& options, const char* key) {
  return options.at(key).to_number<double>();
}

inline std::string text(const boost::json::value& value) {
  return std::string(value.as_string());
}

inline at::Tensor tensor_of(const boost::json::object& object,
                            const char* key,
                            const boost::json::object& shapes) {
  std::vector<std::int64_t> shape;
  for (const auto& size : shapes.at(key).as_array())
    shape.push_back(size.to_number<std::int64_t>());
  return torch::tensor(numbers(object.at(key)), at::kDouble).reshape(shape);
}

inline at::Tensor parameter(std::vector<double> values) {
  return torch::tensor(values, at::kDouble).requires_grad_();
}

// The message of the exception E that `action` throws.
template <class E, class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace fulmen
