#include "core/distributed/port_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "fulmen/core/support/error.h"
#include "tests/support/run_program.h"

namespace fulmen::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Its files are in a folder of this test.
class PortFileTest : public testing::Test {
 protected:
  PortFileTest() { ::setenv("TMPDIR", temporary_.path().c_str(), 1); }
  ~PortFileTest() override { ::unsetenv("TMPDIR"); }

  std::filesystem::path folder() const {
    return temporary_.path() / ("fulmen-" + std::to_string(::getuid()));
  }

 private:
  TemporaryFolder temporary_;
};

TEST_F(PortFileTest, TellsThePortUntilItIsDestroyed) {
  const PortFile reader("job 1");
  {
    PortFile writer("job 1");
    std::thread late([&] {
      std::this_thread::sleep_for(milliseconds(50));
      writer.publish(4321);
    });
    EXPECT_EQ(reader.wait(seconds(10)), 4321);
    late.join();
    EXPECT_THROW(PortFile("job 2").wait(milliseconds(30)), DistributedError);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder()));
  struct stat status {};
  ASSERT_EQ(::stat(folder().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0700U);
}

TEST_F(PortFileTest, IgnoresWhatACrashedJobLeft) {
  PortFile rank("job");
  const pid_t crashed = ::fork();
  if (crashed == 0) {
    PortFile("job").publish(1111);  // Removed by the destructor, so written again.
    std::ofstream(folder() / "job.port") << "1111 " << ::getpid() << "\n";
    ::_exit(0);
  }
  ::waitpid(crashed, nullptr, 0);
  ASSERT_FALSE(std::filesystem::is_empty(folder()));
  try {
    rank.wait(milliseconds(50));
    FAIL() << "took the port of a crashed job";
  } catch (const DistributedError& error) {
    EXPECT_NE(std::string(error.what()).find("within 0.05 s"), std::string::npos) << error.what();
  }
  rank.publish(2222);
  EXPECT_EQ(PortFile("job").wait(seconds(10)), 2222);
}

TEST_F(PortFileTest, RefusesAFolderThatOthersCanUse) {
  ASSERT_EQ(::mkdir(folder().c_str(), 0700), 0);
  ASSERT_EQ(::chmod(folder().c_str(), 0755), 0);
  EXPECT_THROW(PortFile("job"), DistributedError);
  EXPECT_THROW(PortFile(""), DistributedError);
}

}  // namespace
}  // namespace fulmen::detail
