#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace fulmen {

/// What a role waits for, at most; and the hard limit of the tests that start it.
constexpr std::chrono::seconds kRoleLimit(60);

/// This program in a role.
std::vector<std::string> role_command(const std::string& role, int devices);
/// Runs it to its end, by a launcher if that is given.
ProgramResult run_role(const std::string& role,
                       int devices = 2,
                       std::map<std::string, std::string> variables = {},
                       std::vector<std::string> launcher = {});
/// How often a part is in a text.
int count(const std::string& text, const std::string& part);

}  // namespace fulmen
