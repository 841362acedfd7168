// SPDX-License-Identifier: Apache-2.0
// A stand-in for C++23's <mdspan>, which the compilers that heed is built with lack: as much of the
// standard's interface as <heed/mdspan.hpp> asks for and the tests use to make one. All extents are dynamic.
#pragma once
#include <array>
#include <cstddef>

namespace stand_in {

template <class Index, std::size_t axes>
class dextents {
 public:
  using index_type = Index;
  using rank_type = std::size_t;
  template <class... Extents>
    requires(sizeof...(Extents) == axes)
  constexpr explicit dextents(Extents... extents) : extents_{static_cast<Index>(extents)...} {}
  static constexpr rank_type rank() { return axes; }
  constexpr Index extent(rank_type axis) const { return extents_[axis]; }

 private:
  std::array<Index, axes> extents_;
};

// What the layouts below share: strides by which the index is found.
template <class Extents>
class strided_mapping {
 public:
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  constexpr strided_mapping(const Extents& extents, const std::array<index_type, Extents::rank()>& strides)
      : extents_(extents), strides_(strides) {}
  constexpr const Extents& extents() const { return extents_; }
  constexpr index_type stride(std::size_t axis) const { return strides_[axis]; }
  static constexpr bool is_always_strided() { return true; }
  template <class... Indices>
    requires(sizeof...(Indices) == Extents::rank())
  constexpr index_type operator()(Indices... indices) const {
    index_type offset = 0;
    std::size_t axis = 0;
    ((offset += static_cast<index_type>(indices) * strides_[axis++]), ...);
    return offset;
  }

 private:
  Extents extents_;
  std::array<index_type, Extents::rank()> strides_;
};

struct layout_stride {
  template <class Extents>
  using mapping = strided_mapping<Extents>;
};

// The last axis is the innermost.
struct layout_right {
  template <class Extents>
  class mapping : public strided_mapping<Extents> {
   public:
    constexpr explicit mapping(const Extents& extents) : strided_mapping<Extents>(extents, packed(extents)) {}

   private:
    static constexpr auto packed(const Extents& extents) {
      std::array<typename Extents::index_type, Extents::rank()> strides{};
      typename Extents::index_type step = 1;
      for (std::size_t axis = Extents::rank(); axis-- > 0; step *= extents.extent(axis)) strides[axis] = step;
      return strides;
    }
  };
};

// The first axis is the innermost.
struct layout_left {
  template <class Extents>
  class mapping : public strided_mapping<Extents> {
   public:
    constexpr explicit mapping(const Extents& extents) : strided_mapping<Extents>(extents, packed(extents)) {}

   private:
    static constexpr auto packed(const Extents& extents) {
      std::array<typename Extents::index_type, Extents::rank()> strides{};
      typename Extents::index_type step = 1;
      for (std::size_t axis = 0; axis < Extents::rank(); step *= extents.extent(axis++)) strides[axis] = step;
      return strides;
    }
  };
};

template <class Element>
struct default_accessor {
  using element_type = Element;
  using reference = Element&;
  using data_handle_type = Element*;
};

template <class Element, class Extents, class Layout = layout_right,
          class Accessor = default_accessor<Element>>
class mdspan {
 public:
  using element_type = Element;
  using extents_type = Extents;
  using layout_type = Layout;
  using accessor_type = Accessor;
  using mapping_type = typename Layout::template mapping<Extents>;
  using index_type = typename Extents::index_type;
  using rank_type = std::size_t;
  using data_handle_type = typename Accessor::data_handle_type;
  using reference = typename Accessor::reference;

  template <class... Indices>
    requires(sizeof...(Indices) == Extents::rank())
  constexpr explicit mdspan(data_handle_type data, Indices... extents)
      : data_(data), mapping_(Extents(extents...)) {}
  constexpr mdspan(data_handle_type data, const mapping_type& mapping) : data_(data), mapping_(mapping) {}

  static constexpr rank_type rank() { return Extents::rank(); }
  static constexpr bool is_always_strided() { return mapping_type::is_always_strided(); }
  constexpr index_type extent(rank_type axis) const { return mapping_.extents().extent(axis); }
  constexpr index_type stride(rank_type axis) const { return mapping_.stride(axis); }
  constexpr const data_handle_type& data_handle() const { return data_; }
  constexpr const mapping_type& mapping() const { return mapping_; }

 private:
  data_handle_type data_;
  mapping_type mapping_;
};

}  // namespace stand_in
