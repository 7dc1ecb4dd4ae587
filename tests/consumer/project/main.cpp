#include <iostream>

#include <fulmen/core/support/error.h>
#include <fulmen/version.h>

int main() { std::cout << "Fulmen " << FULMEN_VERSION << " was found and linked.\n"; }
