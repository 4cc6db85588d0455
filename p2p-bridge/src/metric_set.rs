//! Declarations of metrics, and of the enums whose variants are values of their labels.

use prometheus_client::registry::{Metric, Registry, Unit};

/// Declares a struct of metrics. Each field is a metric: its type, its name, its unit if it has one, its help text,
/// which is the documentation of the field as well, and its initial value if that is not the default.
///
/// `registered` creates the metrics and registers them.
///
/// ```
/// # use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
/// p2p_bridge::metrics! {
///     /// Metrics of a cache.
///     struct CacheMetrics {
///         hits: Counter = "cache_hits", "Blocks that were cached";
///         age: Gauge = "cache_age" in Seconds, "Age of the oldest block";
///     }
/// }
/// let metrics = CacheMetrics::registered(&mut Default::default());
/// # (metrics.hits.inc(), metrics.age.set(1));
/// ```
#[macro_export]
macro_rules! metrics {
    ($(#[$attribute:meta])* $visibility:vis struct $Name:ident {
        $($of_field:vis $field:ident: $Metric:ty =
            $name:literal $(in $Unit:ident)?, $help:literal $(, $initial:expr)?;)*
    }) => {
        $(#[$attribute])*
        $visibility struct $Name {
            $(#[doc = $help] $of_field $field: $Metric,)*
        }

        impl $Name {
            fn registered(registry: &mut ::prometheus_client::registry::Registry) -> Self {
                $(
                    let $field: $Metric = $crate::metrics!(@initial $($initial)?);
                    let unit = None$(.or(Some(::prometheus_client::registry::Unit::$Unit)))?;
                    $crate::metric_set::register(registry, $name, $help, unit, &$field);
                )*
                Self { $($field),* }
            }
        }

        impl Default for $Name {
            fn default() -> Self {
                Self::registered(&mut ::prometheus_client::registry::Registry::default())
            }
        }
    };
    (@initial) => { Default::default() };
    (@initial $initial:expr) => { $initial };
}

/// Registers a metric, with its unit if it has one.
pub fn register(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, metric: &(impl Metric + Clone)) {
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, metric.clone()),
        None => registry.register(name, help, metric.clone()),
    }
}

/// Declares an enum of the values of a label, each variant with its value.
#[macro_export]
macro_rules! label_values {
    ($(#[$attribute:meta])* $visibility:vis enum $Name:ident {
        $($(#[$of_variant:meta])* $Variant:ident = $value:literal,)*
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $visibility enum $Name {
            $($(#[$of_variant])* $Variant,)*
        }

        impl $Name {
            /// All variants.
            pub const ALL: [Self; [$($value),*].len()] = [$(Self::$Variant),*];

            /// The value of the label.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$Variant => $value,)*
                }
            }
        }

        impl ::prometheus_client::encoding::EncodeLabelValue for $Name {
            fn encode(
                &self,
                encoder: &mut ::prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> Result<(), ::std::fmt::Error> {
                ::std::fmt::Write::write_str(encoder, self.label())
            }
        }
    };
}
