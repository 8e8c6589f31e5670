#include "zerocache/torch/store.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "device/host_device.h"
#include "edge/without_gil.h"
#include "zerocache/schedule/scheduler.h"

namespace taco::zerocache {
namespace {

constexpr char kClosed[] = "the cache that held it was closed without giving it back";
constexpr char kLost[] =
    "its bytes could not be read any more when the cache that held it was closed; load a "
    "checkpoint into another cache";
constexpr char kGone[] = "the cache that held it is gone";
constexpr char kSpread[] =
    "the cache that held it is closed, and it was spread over ranks: call state_dict() on all of "
    "them, or ZeroCache.save(), before close()";

// A region's pages may be numbered behind another that has room left, as long as all before it, and
// pages of state that are never written, or are another rank's, count as well: of AdamW over
// bfloat16 parameters there are six for each page of those. Numbers cost addresses, and some 200
// bytes each, which is much beside small pages alone.
constexpr std::uint32_t kSparePages = 16 * kMinRegion;
constexpr std::size_t kLargePage = std::size_t{256} << 10;

std::uint32_t numbers_each(std::size_t page_bytes) { return page_bytes < kLargePage ? 2 : 8; }

std::uint32_t pages_in(std::uint64_t bytes, std::size_t page_bytes) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes / page_bytes, kNoPage / 4));
}

Capacities capacities_of(const StoreOptions& options) {
  Capacities found;
  found.device = pages_in(options.device_bytes, options.page_bytes);
  found.host = pages_in(options.host_bytes, options.page_bytes);
  for (const SlabDirectory& place : options.disk)
    found.disk += pages_in(place.bytes, options.page_bytes);
  return found;
}

// Where parameters are spread over ranks, each numbers the pages of all.
std::uint32_t max_pages(const Capacities& room, std::size_t page_bytes, int ranks) {
  const std::uint64_t pages = std::uint64_t{room.device} + room.host + room.disk;
  const std::uint64_t each = std::max(numbers_each(page_bytes), static_cast<std::uint32_t>(ranks));
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(each * pages + kSparePages, kNoPage / 2));
}

Status check_page_numbers(std::uint32_t pages, std::uint32_t most, std::size_t page_bytes) {
  if (pages <= most) return Status();
  const std::uint64_t more =
      (std::uint64_t{pages - most} / numbers_each(page_bytes) + 1) * page_bytes;
  return invalid("parameters of several element sizes take turns so that " + std::to_string(pages) +
                 " page numbers are needed, of which a cache of this size has " +
                 std::to_string(most) + ": give ssd " + std::to_string((more >> 20) + 1) +
                 " MiB more, or the cache smaller pages");
}

// Pages that something lies on, on the rank that keeps most. Where parameters are not spread over
// ranks, each has all of them; and `everywhere` says which pages all have anyway.
std::size_t max_held(const Layout& layout, const StateLayout& state, const Shards& shards,
                     bool spread, const std::function<bool(PageId)>& everywhere) {
  std::size_t parameters = 0;
  std::vector<std::size_t> kept(static_cast<std::size_t>(shards.ranks()));
  for (PageId page = 0; page < layout.pages(); ++page) {
    if (layout.tensors_on(page).empty()) continue;
    if (!everywhere(page) && (spread || state.is_state(page))) {
      ++kept[static_cast<std::size_t>(shards.owner(page))];
    } else {
      ++parameters;
    }
  }
  return parameters + *std::max_element(kept.begin(), kept.end());
}

void add_pages(const Run& run, std::vector<PageId>& pages) {
  for (std::uint32_t i = 0; i < run.count; ++i) pages.push_back(run.first + i);
}

void sort_out(std::vector<PageId>& pages) {
  std::sort(pages.begin(), pages.end());
  pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
}

// As FaultNote::Describe; `layout` is the store's.
std::size_t describe_touch(const void* layout, std::size_t offset, char* text, std::size_t size) {
  const PlacedTensor* const tensor = static_cast<const Layout*>(layout)->tensor_at(offset);
  const std::string_view parts[] = {
      "taco_torch.zerocache: '", tensor == nullptr ? "a parameter" : std::string_view(tensor->name),
      "' is not in memory now, and a pointer to it was read or written: p.data_ptr() is good until "
      "the use ends that it was taken in. Take it anew inside `with cache.use(parameter)`. This "
      "process ends by SIGSEGV."};
  std::size_t length = 0;
  for (const std::string_view part : parts) {
    const std::size_t fits = std::min(part.size(), size - length);
    std::memcpy(text + length, part.data(), fits);
    length += fits;
  }
  return length;
}

std::vector<Access> accesses_to(std::span<const Run> runs, bool writes) {
  std::vector<PageId> pages;
  for (const Run& run : runs) add_pages(run, pages);
  sort_out(pages);
  std::vector<Access> accesses;
  accesses.reserve(pages.size());
  for (const PageId page : pages)
    accesses.push_back({.page = page, .tier = Tier::kDevice, .writes = writes});
  return accesses;
}

}  // namespace

// The range and the device with its memory, for as long as torch points there.
struct Store::Reservation {
  std::shared_ptr<device::Device> device;
  std::byte* begin;
  std::uint32_t pages;
  ~Reservation() { static_cast<void>(device->release(begin)); }
};

Status Store::check_room(const std::vector<PlannedParameter>& parameters,
                         std::span<const StateKind> kinds,
                         const std::vector<std::vector<std::uint32_t>>& needed,
                         FinalGradients gradients, int ranks, bool spread) {
  Layout layout = layout_;
  std::vector<std::uint32_t> indices, trained, spread_out;
  for (const PlannedParameter& parameter : parameters) {
    const auto placed = by_name_.find(parameter.name);
    Result<std::uint32_t> index = Status();
    index = placed != by_name_.end()
                ? Result<std::uint32_t>(placed->second->tensor)
                : layout.append({parameter.name, parameter.bytes, parameter.element_bytes});
    if (!index.ok()) return index.status();
    indices.push_back(*index);
    if (parameter.trained) trained.push_back(*index);
    if (!parameter.moments) spread_out.push_back(*index);
  }
  std::size_t device_pages = trained.empty() ? 0 : 1, stripes = 0;
  for (const std::vector<std::uint32_t>& group : needed) {
    std::vector<PageId> pages;
    for (const std::uint32_t index : group)
      add_pages(layout.pages_of(layout.tensors()[indices[index]]), pages);
    sort_out(pages);
    device_pages = std::max(device_pages, pages.size());
    for (PageId& page : pages) page /= static_cast<PageId>(ranks);
    sort_out(pages);
    stripes = std::max(stripes, pages.size());
  }
  // A stripe has a page of each rank; one more is for reads and steps meanwhile.
  const auto size = static_cast<std::size_t>(ranks);
  if (spread) device_pages = stripes * size + 1;
  if (gradients == FinalGradients::kAreStepped) ++device_pages;
  auto state = StateLayout::append_to(layout, trained, kinds);
  if (!state.ok()) return state.status();
  std::size_t host_pages = trained.empty() ? 0 : state->kinds().size();
  const Stripes all(layout, spread_out, 0, ranks);
  const Shards shards = spread ? Shards::striped(layout, *state, trained, all)
                               : Shards::deal(layout, *state, trained, 0, ranks);
  const auto everywhere = [&](PageId page) {
    return !all.covers(page) && !state->is_state(page);  // moments alone
  };
  std::size_t held = max_held(layout, *state, shards, spread, everywhere);
  if (spread) held += stripes * (size - 1);
  if (gradients == FinalGradients::kAreKeptOnPages) {
    auto pages = GradientPages::append_to(layout, trained);
    if (!pages.ok()) return pages.status();
    held += pages->count();
    ++host_pages;
  }
  const Capacities room = mover_->capacities();
  TACO_RETURN_IF_ERROR(check_capacities(room, page_bytes(), held, device_pages, host_pages));
  numbers_needed_ = spread ? layout.pages() : 0;
  if (spread && layout_.pages() == 0 && layout.pages() < kNoPage / 2) return {};  // open_numbers()
  return check_page_numbers(layout.pages(), range_->pages, page_bytes());
}

Result<std::unique_ptr<Store>> Store::open(const StoreOptions& options) {
  auto layout = Layout::make({}, options.page_bytes);
  if (!layout.ok()) return layout.status();
  std::unique_ptr<Store> store(new Store(options, std::move(*layout)));
  const Capacities room = capacities_of(options);
  if (room.device == 0 || room.host == 0) {
    return invalid(std::string(room.device == 0 ? "device" : "host") +
                   " memory is smaller than a page of " + std::to_string(options.page_bytes) +
                   " bytes: give it more, or the cache smaller pages");
  }
  TACO_RETURN_IF_ERROR(store->open_mover(max_pages(room, options.page_bytes, 1)));
  return store;
}

Status Store::open_mover(std::uint32_t numbers) {
  MoverOptions mover;
  mover.capacities = capacities_of(options_);
  mover.max_pages = numbers;
  device::HostOptions host;
  host.memory.frame_bytes = options_.page_bytes;
  host.memory.max_frames = mover.capacities.device;
  host.memory.poison = options_.poison;
  auto device = device::make_host_device(host);
  if (!device.ok()) return device.status();
  mover.device = std::move(*device);
  auto range = mover.device->reserve(std::uint64_t{numbers} * options_.page_bytes);
  if (!range.ok()) return range.status().with_prefix("device, host and ssd are too large: ");
  range_.reset(new Reservation{mover.device, *range, numbers});
  touches_.emplace(*range, std::size_t{numbers} * options_.page_bytes, &layout_, &describe_touch);
  mover.range = *range;
  mover.costs.page_bytes = options_.page_bytes;
  mover.disk = options_.disk;
  mover.io = options_.io;
  mover.store = id_ = random_value<StoreId>();
  mover.poison = options_.poison;
  auto opened = Mover::open(FileSystem::real(), mover, layout_);
  if (!opened.ok()) return opened.status();
  mover_ = std::move(*opened);
  return {};
}

// Each rank numbers the pages of all, and whoever opened the store did not know how many these
// would be: `ranks`, or as many as check_room() has counted. Before there are pages.
Status Store::open_numbers(int ranks) {
  std::uint32_t numbers = std::max(numbers_needed_, range_->pages);
  if (numbers_needed_ == 0) {
    numbers = std::max(numbers, max_pages(mover_->capacities(), page_bytes(), ranks));
  }
  if (layout_.pages() > 0 || numbers == range_->pages) return {};
  {
    const WithoutGil others_run;
    mover_.reset();  // and lets go of the disks
  }
  touches_.reset();
  range_.reset();
  return open_mover(numbers);
}

Store::~Store() {
  for (const auto& entry : entries_) {
    if (!closed()) entry->storage->set_absent(kGone);
  }
  forget_steps();
  let_go();
}

void Store::let_go() {
  const WithoutGil others_run;
  spread_.reset();
  sharing_.reset();
  backward_.reset();
  stream_.reset();
  ranks_.reset();
  mover_.reset();
}

Status Store::usable() const {
  TACO_RETURN_IF_ERROR(alone());
  return broken_;
}

// Waiting for pages, without the GIL.
Status Store::hold(OperatorKey key, std::span<const Access> accesses) {
  const WithoutGil others_run;
  Status begun = mover_->begin(key, accesses);
  if (begun.code() == Code::kInvalidArgument && backward_) {
    // A page that is being stepped may be what it has no room beside.
    backward_->wait_for_chunks();
    begun = mover_->begin(key, accesses);
  }
  return begun;
}

Store::Entry* Store::find(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto found = by_storage_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == by_storage_.end()) return nullptr;
  return found->second->storage->holds(tensor) ? found->second : nullptr;
}

Result<Store::Entry*> Store::placed(const at::Tensor& tensor) const {
  TACO_RETURN_IF_ERROR(usable());
  if (Entry* entry = find(tensor)) return entry;
  return invalid("this tensor is none of the cache's parameters");
}

Result<Store::Entry*> Store::named(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  return invalid("there is no parameter '" + name + "' in the cache");
}

Status check_placeable(const at::Tensor& tensor, const std::string& name) {
  TACO_RETURN_IF_ERROR(can_be_placed(tensor, name));
  if (tensor.nbytes() == tensor.storage().nbytes() && tensor.is_non_overlapping_and_dense())
    return Status();
  return Status(Code::kUnsupported,
                "parameter '" + name +
                    "' is a part of a larger piece of memory that other tensors may use; give it "
                    "memory of its own first: p.data = p.data.clone()");
}

Status Store::place(const std::string& name, const at::Tensor& tensor) {
  TACO_RETURN_IF_ERROR(usable());
  if (by_name_.contains(name)) return invalid("parameter '" + name + "' is in the cache already");
  if (Entry* entry = find(tensor)) {
    entry->storage->add(tensor, name);
    by_name_[name] = entry;
    return Status();
  }
  TACO_RETURN_IF_ERROR(check_placeable(tensor, name));
  const std::size_t bytes = tensor.nbytes();
  Result<std::uint32_t> index = Status();
  mover_->change_layout([&] {
    index = layout_.append({name, bytes, static_cast<std::uint32_t>(tensor.element_size())});
  });
  if (!index.ok()) return index.status();
  Status status = check_numbers().with_prefix("parameter '" + name + "' does not fit: ");
  if (status.ok()) status = place_bytes(name, tensor, *index);
  if (!status.ok()) mover_->change_layout([&] { layout_.remove(*index); });
  return status;
}

Status Store::check_numbers() const {
  return check_page_numbers(layout_.pages(), range_->pages, options_.page_bytes);
}

Status Store::place_bytes(const std::string& name, const at::Tensor& tensor, std::uint32_t index) {
  const PlacedTensor& place = layout_.tensors()[index];
  const Run run = layout_.pages_of(place);
  std::vector<Access> accesses = accesses_to({&run, 1}, true);
  for (Access& access : accesses) {
    access.reads = mover_->has_content(access.page);
    access.last = !is_placed_here(access.page);
  }
  if (making_) make_room_for(run);
  const OperatorKey key = kPlaceKeys | run.first;
  TACO_RETURN_IF_ERROR(hold(key, accesses).with_prefix("parameter '" + name + "': "));
  auto storage = PlacedStorage::place(
      tensor, name, mover_->address(run.first, Tier::kDevice) + place.offset % options_.page_bytes,
      range_);
  if (storage.ok()) {
    auto entry = std::make_unique<Entry>();
    entry->storage = std::move(*storage);
    entry->tensor = index;
    entry->parameter = uses_.add(*entry->storage, run);
    by_storage_[tensor.storage().unsafeGetStorageImpl()] = entry.get();
    by_name_[name] = entry.get();
    entries_.push_back(std::move(entry));
    if (making_) spread_->stripes.cover(run);
  }
  mover_->end(key);
  return storage.status();
}

Result<Uses::Part> Store::add_part(const std::vector<std::string>& names) {
  std::vector<Uses::Parameter> parameters;
  for (const std::string& name : names) {
    auto entry = named(name);
    if (!entry.ok()) return entry.status();
    parameters.push_back((*entry)->parameter);
  }
  std::sort(parameters.begin(), parameters.end());
  parameters.erase(std::unique(parameters.begin(), parameters.end()), parameters.end());
  return uses_.add_part(std::move(parameters));
}

Status Store::note_write(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    auto entry = named(name);
    if (!entry.ok()) return entry.status();
    uses_.note_write((*entry)->parameter);
  }
  return Status();
}

Status Store::begin(std::uint64_t key, std::span<const Run> pages) {
  TACO_RETURN_IF_ERROR(usable());
  // A parameter that is read by a pass which began anew within a backward pass is not being stepped
  // meanwhile.
  if (Uses::is_backward(key)) {
    TACO_RETURN_IF_ERROR(advance());
  } else {
    wait_for_steps();
  }
  return spread_ ? gather(key, pages) : hold(key, accesses_to(pages, false));
}

void Store::end(std::uint64_t key, std::span<const Run>) {
  if (!spread_) return mover_->end(key);
  const WithoutGil others_run;
  spread_->gathered.end(key);
}

// The pages are in use and on the device, so there is nothing to wait for: from now on copies of
// them elsewhere are out of date.
// Where parameters are spread, their owners have been given the new values, too.
void Store::wrote(std::span<const Run> pages) {
  const OperatorKey key = kWrittenKeys | pages.front().first;
  std::vector<Access> accesses = accesses_to(pages, true);
  if (spread_) {
    if (making_) compare_written(accesses);
    for (const Access& access : accesses) {
      spread_->gathered.release(spread_->stripes.stripe_of(access.page));
    }
    std::erase_if(accesses, [this](const Access& access) { return !keeps(access.page); });
    if (accesses.empty()) return;
  }
  const Status status = hold(key, accesses);
  if (status.ok()) {
    mover_->end(key);
  } else if (broken_.ok()) {
    broken_ = status.with_prefix("parameters that the model has changed may be lost: ");
  }
}

void Store::begin_run(const std::string& name) {
  if (closed()) return;
  const bool over = run_is_over();
  if (run_ == name && !over) return;
  if (over) lose_gradients();
  left_run_ = false;
  const WithoutGil others_run;
  if (spread_) spread_->gathered.end_run();
  run_ = name;
  mover_->begin_run(name);
  // The first use reports what keeps the ranks from it. Where they have parted in the middle of a
  // step, all of them know, and none announces anything.
  const bool parted = broken_.code() == Code::kAborted;
  if (spread_ && !parted) static_cast<void>(spread_->gathered.begin_run(name));
}

void Store::end_run() {
  if (closed() || run_.empty()) return;
  const WithoutGil others_run;
  if (spread_) spread_->gathered.end_run();
  run_.clear();
  mover_->end_run();
}

Status Store::restore(const Entry& entry) {
  // Before the pages are begun: their end gives up what they hold.
  TACO_RETURN_IF_ERROR(entry.storage->check());
  const PlacedTensor& place = layout_.tensors()[entry.tensor];
  const Run run = layout_.pages_of(place);
  std::vector<Access> accesses = accesses_to({&run, 1}, false);
  for (Access& access : accesses) access.last = layout_.tensors_on(access.page).size() == 1;
  const OperatorKey key = kPlaceKeys | run.first;
  TACO_RETURN_IF_ERROR(hold(key, accesses));
  entry.storage->set_present();
  Status status = entry.storage->restore();
  if (!status.ok()) entry.storage->set_absent();
  mover_->end(key);
  return status;
}

Status Store::close(bool restore_all) {
  if (closed()) return Status();
  if (getpid() != process_) return usable();
  forget_steps();
  uses_.end_all();
  if (!spread_) begin_run("close");
  if (!run_.empty()) leave_run("this rank has closed its cache");
  if (close_failed_) {  // state is worth nothing any more, and in the way of what is to be read
    for (const Run& run : state_.pages()) mover_->discard(run.pages());
  }
  Status lost;
  for (const auto& entry : entries_) {
    if (!entry->storage->alive()) continue;
    if (restore_all && !is_spread_) {
      const Status restored = restore(*entry);
      if (restored.code() != Code::kResource) TACO_RETURN_IF_ERROR(restored);
      if (restored.ok()) continue;
      if (!std::exchange(close_failed_, true)) {
        return restored.with_prefix(
            "what cannot be read cannot be given back (close() once more, and the cache is closed "
            "without it): ");
      }
      if (lost.ok()) lost = restored.with_prefix(entry->storage->described() + ": ");
      entry->storage->set_absent(kLost);
    } else {
      entry->storage->set_absent(is_spread_ ? kSpread : kClosed);
    }
  }
  by_storage_.clear();
  let_go();
  touches_.reset();
  range_.reset();
  return lost.with_prefix(
      "the cache is closed, but what could not be read was not given back: the first is ");
}

}  // namespace taco::zerocache
