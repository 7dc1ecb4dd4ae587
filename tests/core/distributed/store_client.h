#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "core/distributed/key_value_message.h"
#include "core/distributed/key_value_server.h"
#include "core/distributed/key_value_store.h"

namespace fulmen::detail {

inline std::shared_ptr<const JobToken> test_token() {
  return JobToken::from_text("a secret of this test", "test");
}

/// A client of a server on this host.
inline c10::intrusive_ptr<KeyValueStore> connect_to(const KeyValueServer& server,
                                                    std::shared_ptr<const JobToken> token,
                                                    const std::string& host = "127.0.0.1") {
  return c10::make_intrusive<KeyValueStore>(
      KeyValueStoreOptions{.host = host,
                           .port = server.port(),
                           .token = std::move(token),
                           .timeout = std::chrono::seconds(30)});
}
inline c10::intrusive_ptr<KeyValueStore> connect_to(const KeyValueServer& server) {
  return connect_to(server, test_token());
}

}  // namespace fulmen::detail
