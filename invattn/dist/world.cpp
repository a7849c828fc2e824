#include "invattn/dist/world.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <future>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace invattn {
namespace {

// What gloo_declarations/ leaves out must not change what torch's own code takes for the class.
static_assert(sizeof(c10d::ProcessGroupGloo) == 488);

constexpr const char* kOrigin = "dist";
constexpr int64_t kMostProcesses = 1 << 20;
constexpr std::chrono::milliseconds kLongestPause{500};
constexpr std::chrono::seconds kShortestMeeting{30};  // others may be started a little later

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// An environment variable as a number from 0 to `most`.
std::optional<int64_t> number(const char* name, int64_t most) {
  const std::string text = variable(name);
  if (text.empty()) return std::nullopt;
  int64_t value = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(problem == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most, kOrigin,
          "expected a whole number from 0 to ", most, " in the environment variable ", name, ", got '", text,
          "'. Start the command by torchrun, which sets it.");
  return value;
}

/// The same, where it has to be there.
int64_t needed(const char* name, int64_t most) {
  const auto value = number(name, most);
  require(value.has_value(), kOrigin, "expected the environment variable ", name,
          ", since WORLD_SIZE names several processes, got none. Start the command by torchrun, which sets it, or unset WORLD_SIZE.");
  return *value;
}

c10d::AllreduceOptions reduction(c10d::ReduceOp::RedOpType operation) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  return options;
}

}  // namespace

struct World::Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
#ifdef USE_C10D_NCCL
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl;  // none on a CPU
#endif

  /// What reduces this tensor.
  c10d::Backend& of(const at::Tensor& tensor) const {
#ifdef USE_C10D_NCCL
    if (tensor.is_cuda() && nccl) return *nccl;
#endif
    require(tensor.is_cpu(), kOrigin, "expected tensors on the CPU, or on a GPU where NCCL was built in, got ", tensor.device(),
            ". Build with CUDA and NCCL's headers (they come with torch), or use --device cpu.");
    return *gloo;
  }
};

namespace {

/// The number, from 1, of the meeting to which all `size` processes have come that the launcher has started together. Processes that are
/// started again meet in the store of those before, and each may see another of them go on for a while; how often a launcher has started
/// its own it says, but on every machine another number. So the one with rank 0 opens a new meeting, which those of the others that are new
/// come to, and closes it when they all have: before that nobody reads what others have left.
int64_t meeting(c10d::Store& store, int64_t rank, int64_t size, std::chrono::seconds timeout) {
  constexpr const char* kOpened = "invattn/meetings";
  const auto key = [](int64_t number, const std::string& what) { return "invattn/meeting " + std::to_string(number) + "/" + what; };
  int64_t mine = rank == 0 ? store.add(kOpened, 1) : 0;
  const auto start = std::chrono::steady_clock::now();
  for (auto pause = std::chrono::milliseconds(1);; pause = std::min(2 * pause, kLongestPause)) {
    if (rank == 0) {
      if (store.add(key(mine, "came"), 0) == size - 1) {
        store.add(key(mine, "closed"), 1);
        return mine;
      }
    } else {
      const int64_t latest = store.add(kOpened, 0);
      if (latest > mine && store.add(key(latest, std::to_string(rank)), 1) == 1) {  // else it was the process before that came
        mine = latest;
        store.add(key(mine, "came"), 1);
      }
      if (mine > 0 && store.add(key(mine, "closed"), 0) == 1) return mine;
    }
    if (std::chrono::steady_clock::now() - start > std::max(timeout, kShortestMeeting)) {
      throw std::runtime_error("not all came within the time-out");
    }
    std::this_thread::sleep_for(pause);
  }
}

/// Runs an operation of c10d, whose errors are all that a process was lost.
template <class Operation>
void together(const char* doing, const Operation& operation) {
  try {
    operation();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    std::string text = error.what();
    text.resize(std::min(text.find('\n'), text.size()));
    throw ProcessLost(
        "[" + std::string(kOrigin) + "] expected all processes to " + doing + ", got '" + text +
        "'. Another process has ended or hangs: what it printed says why. With torchrun --max-restarts a training goes on from "
        "its last checkpoint.");
  }
}

}  // namespace

ErrorOfOther::ErrorOfOther(ErrorKind kind, std::string_view text)
    : Error(kind, text.substr(1, text.find(']') - 1), text.substr(std::min(text.find(']') + 2, text.size()))) {}

bool World::has_others() { return number("WORLD_SIZE", kMostProcesses).value_or(1) > 1; }

int64_t World::local_rank() { return number("LOCAL_RANK", kMostProcesses).value_or(0); }

World World::join(at::Device device, std::chrono::seconds timeout) {
  World world;
  world.timeout_ = timeout;
  if (!has_others()) return world;
  world.size_ = needed("WORLD_SIZE", kMostProcesses);
  world.rank_ = needed("RANK", world.size_ - 1);
  const std::string address = variable("MASTER_ADDR");
  require(
      !address.empty(), kOrigin,
      "expected the environment variable MASTER_ADDR, since WORLD_SIZE names several processes, got none. Start the command by torchrun, "
      "which sets it, or unset WORLD_SIZE.");
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(needed("MASTER_PORT", 65535));
  options.isServer = world.leads() && variable("TORCHELASTIC_USE_AGENT_STORE") != "True";  // else torchrun has one
  options.numWorkers = static_cast<std::size_t>(world.size_);
  options.waitWorkers = false;
  options.timeout = timeout;
  std::signal(SIGPIPE, SIG_IGN);  // what a lost process leaves is an error of an operation
  world.group_ = std::make_shared<Group>();
  Group& group = *world.group_;
  const auto rank = static_cast<int>(world.rank_);
  const auto size = static_cast<int>(world.size_);
  together("meet", [&] {
    const auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
    const int64_t met = meeting(*store, rank, size, timeout);
    world.started_again_ = met > 1;
    group.store = c10::make_intrusive<c10d::PrefixStore>("invattn/" + std::to_string(met), store);
    group.gloo =
        c10::make_intrusive<c10d::ProcessGroupGloo>(group.store, rank, size, c10d::ProcessGroupGloo::Options::create_default(timeout));
  });
#ifdef USE_C10D_NCCL
  if (device.is_cuda()) {
    together("meet on GPUs", [&] {
      auto nccl = c10d::ProcessGroupNCCL::Options::create();
      nccl->timeout = timeout;
      group.nccl =
          c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("nccl", group.store), rank, size, nccl);
      group.nccl->eagerConnectSingleDevice(device);  // none may be connected while a step is captured
    });
  }
#else
  require(device.is_cpu(), kOrigin, "expected a build with NCCL for several processes on GPUs, got one without. ",
          "Build with CUDA (make CUDA=ON) where NCCL's headers are, or use --device cpu.");
#endif
  // A store of their own, which torchrun can be told to leave to the processes, knows of none before.
  world.started_again_ = world.any(world.started_again_ || number("TORCHELASTIC_RESTART_COUNT", kMostProcesses).value_or(0) > 0);
  return world;
}

void World::sum(const at::Tensor& values) const {
  if (alone()) return;
  together("add up", [&] {
    std::vector<at::Tensor> tensors{values};
    group_->of(values).allreduce(tensors, reduction(c10d::ReduceOp::SUM))->wait();
  });
}

void World::max(const at::Tensor& values) const {
  if (alone()) return;
  together("compare", [&] {
    // A maximum of gloo's loses what is not a number: a flag beside each says so.
    const at::Tensor lost = values.isnan();
    std::vector<at::Tensor> both{
        at::stack({at::where(lost, -std::numeric_limits<double>::infinity(), values), lost.to(values.scalar_type())})};
    group_->of(values).allreduce(both, reduction(c10d::ReduceOp::MAX))->wait();
    values.copy_(at::where(both[0][1] > 0, std::numeric_limits<double>::quiet_NaN(), both[0][0]));
  });
}

void World::broadcast(const at::Tensor& values) const {
  if (alone()) return;
  together("take what the first one has", [&] {
    std::vector<at::Tensor> tensors{values};
    group_->of(values).broadcast(tensors, c10d::BroadcastOptions{})->wait();
  });
}

at::Tensor World::gather(const at::Tensor& values) const {
  if (alone()) return values;
  at::Tensor result;
  together("give what they have", [&] {
    std::vector<at::Tensor> mine{values.contiguous()};
    std::vector<std::vector<at::Tensor>> all(1);
    for (int64_t rank = 0; rank < size_; ++rank) all[0].push_back(at::empty_like(mine[0]));
    group_->of(values).allgather(all, mine, c10d::AllgatherOptions{})->wait();
    result = at::cat(all[0]);
  });
  return result;
}

std::string World::broadcast(std::string text) const {
  if (alone()) return text;
  const at::Tensor length = at::full({}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(length);
  at::Tensor bytes = at::empty({length.item<int64_t>()}, at::kByte);
  if (leads()) std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  if (bytes.numel() > 0) broadcast(bytes);
  return {reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), static_cast<std::size_t>(bytes.numel())};
}

bool World::any(bool mine) const {
  if (alone()) return mine;
  const at::Tensor flag = at::full({}, mine ? 1.0 : 0.0, at::kDouble);
  sum(flag);
  return flag.item<double>() > 0;
}

void World::barrier() const { any(false); }

int64_t World::add(const std::string& name, int64_t amount) const {
  require(!alone(), kOrigin, "expected several processes to share the number '", name, "', got one.");
  int64_t sum = 0;
  together("answer", [&] {
    // The store waits for its answer without end, also where the network is gone: then its thread is left behind.
    auto answer = std::make_shared<std::promise<int64_t>>();
    auto known = answer->get_future();
    std::thread([group = group_, answer, name, amount] {
      try {
        answer->set_value(group->store->add(name, amount));
      } catch (...) {
        answer->set_exception(std::current_exception());
      }
    }).detach();
    if (known.wait_for(timeout_) != std::future_status::ready) throw std::runtime_error("no answer within the time-out");
    sum = known.get();
  });
  return sum;
}

void World::first(const std::function<void()>& work) const {
  if (alone()) return work();
  std::exception_ptr thrown;
  nlohmann::json outcome = nlohmann::json::object();
  if (leads()) {
    try {
      work();
    } catch (const Error& error) {
      thrown = std::current_exception();
      outcome = {{"kind", error.exit_code()}, {"text", error.what()}};
    } catch (const std::exception& error) {
      thrown = std::current_exception();
      outcome = {{"kind", 0}, {"text", error.what()}};
    }
  }
  const std::string told = broadcast(leads() ? outcome.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "");
  if (thrown) std::rethrow_exception(thrown);
  outcome = nlohmann::json::parse(told);
  if (!outcome.contains("kind")) return;
  const int kind = outcome["kind"].get<int>();
  const std::string text = outcome["text"].get<std::string>();
  if (kind == 0) throw ProcessLost("[" + std::string(kOrigin) + "] expected process 0 to go on, got '" + text + "'.");
  throw ErrorOfOther(static_cast<ErrorKind>(kind), text);
}

void World::agree(std::string_view origin, const std::vector<std::pair<std::string, std::string>>& facts) const {
  if (alone()) return;
  for (const auto& [what, mine] : facts) {
    const std::string first = broadcast(mine);
    const at::Tensor same = gather(at::full({1}, first == mine ? 1 : 0, at::kLong));
    for (int64_t rank = 0; rank < size_; ++rank) {
      if (same[rank].item<int64_t>() == 1) continue;
      const std::string text = "expected " + what + " of process 0 in every process, got another in process " + std::to_string(rank) + ". ";
      const std::string step = "Start all of them from the same program, with the same command and the same files.";
      if (!leads()) throw ErrorOfOther(ErrorKind::kUsage, "[" + std::string(origin) + "] " + text + step);
      fail(ErrorKind::kUsage, origin, text, step);
    }
  }
}

}  // namespace invattn
