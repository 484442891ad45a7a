//! A column of a table: its type, its meaning, and its values for some rows.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, PrimitiveBuilder};
use arrow_array::types::{ArrowPrimitiveType, Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{
    ArrayRef, BooleanArray, ListArray, MapArray, PrimitiveArray, RecordBatch, StringArray, StructArray,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

/// A column whose values follow from rows of this type.
pub(crate) struct Column<R> {
    pub(crate) field: Field,
    /// The meaning in a sentence.
    pub(crate) about: &'static str,
    values: Values<R>,
}

type Values<R> = Box<dyn Fn(&[R]) -> Result<ArrayRef, ArrowError> + Send>;

impl<R: 'static> Column<R> {
    fn new(
        name: &str,
        kind: DataType,
        about: &'static str,
        values: impl Fn(&[R]) -> Result<ArrayRef, ArrowError> + Send + 'static,
    ) -> Column<R> {
        Column { field: Field::new(name, kind, false), about, values: Box::new(values) }
    }

    /// The column with values that may be null.
    fn or_null(mut self) -> Column<R> {
        self.field.set_nullable(true);
        self
    }

    pub(crate) fn text(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> Cow<'_, str> + Send + 'static,
    ) -> Column<R> {
        Column::maybe_text(name, about, move |row| Some(of(row))).always()
    }

    pub(crate) fn maybe_text(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> Option<Cow<'_, str>> + Send + 'static,
    ) -> Column<R> {
        let values =
            move |rows: &[R]| Ok(Arc::new(rows.iter().map(&of).collect::<StringArray>()) as ArrayRef);
        Column::new(name, DataType::Utf8, about, values).or_null()
    }

    pub(crate) fn flag(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> bool + Send + 'static,
    ) -> Column<R> {
        Column::maybe_flag(name, about, move |row| Some(of(row))).always()
    }

    pub(crate) fn maybe_flag(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> Option<bool> + Send + 'static,
    ) -> Column<R> {
        let values =
            move |rows: &[R]| Ok(Arc::new(rows.iter().map(&of).collect::<BooleanArray>()) as ArrayRef);
        Column::new(name, DataType::Boolean, about, values).or_null()
    }

    pub(crate) fn count(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> u64 + Send + 'static,
    ) -> Column<R> {
        Column::maybe_count(name, about, move |row| Some(of(row))).always()
    }

    pub(crate) fn maybe_count(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> Option<u64> + Send + 'static,
    ) -> Column<R> {
        let of = move |row: &R| of(row).map(|count| count as i64);
        Column::new(name, DataType::Int64, about, numbers::<R, Int64Type>(of)).or_null()
    }

    pub(crate) fn small_count(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> u32 + Send + 'static,
    ) -> Column<R> {
        let of = move |row: &R| Some(of(row) as i32);
        Column::new(name, DataType::Int32, about, numbers::<R, Int32Type>(of))
    }

    /// A time of this many Unix nanoseconds. 0 stands for no time.
    pub(crate) fn time(
        name: &str,
        about: &'static str,
        unix_ns: impl Fn(&R) -> u64 + Send + 'static,
    ) -> Column<R> {
        // Spark reads no nanoseconds.
        let kind = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let of = move |row: &R| Some(unix_ns(row)).filter(|at| *at > 0).map(|at| (at / 1000) as i64);
        let values = move |rows: &[R]| {
            let times: PrimitiveArray<TimestampMicrosecondType> = rows.iter().map(&of).collect();
            Ok(Arc::new(times.with_timezone("UTC")) as ArrayRef)
        };
        Column::new(name, kind, about, values).or_null()
    }

    pub(crate) fn list<P: ArrowPrimitiveType>(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> Cow<'_, [P::Native]> + Send + 'static,
    ) -> Column<R> {
        Column::maybe_list::<P>(name, about, move |row| Some(of(row))).always()
    }

    pub(crate) fn maybe_list<P: ArrowPrimitiveType>(
        name: &str,
        about: &'static str,
        of: impl Fn(&R) -> Option<Cow<'_, [P::Native]>> + Send + 'static,
    ) -> Column<R> {
        let item = item(P::DATA_TYPE);
        let kind = DataType::List(item.clone());
        let values = move |rows: &[R]| {
            let mut lists = ListBuilder::new(PrimitiveBuilder::<P>::new()).with_field(item.clone());
            for row in rows {
                let list = of(row);
                lists.values().append_slice(list.as_deref().unwrap_or_default());
                lists.append(list.is_some());
            }
            Ok(Arc::new(lists.finish()) as ArrayRef)
        };
        Column::new(name, kind, about, values).or_null()
    }

    /// A list of structs with these columns.
    pub(crate) fn structs<I: Clone + Send + 'static>(
        name: &str,
        about: &'static str,
        items: impl Fn(&R) -> &[I] + Send + 'static,
        columns: Vec<Column<I>>,
    ) -> Column<R> {
        let item = item(DataType::Struct(fields(&columns)));
        let kind = DataType::List(item.clone());
        let values = move |rows: &[R]| {
            let (ends, structs) = entries(rows, &items, &columns)?;
            Ok(Arc::new(ListArray::try_new(item.clone(), ends, Arc::new(structs), None)?) as ArrayRef)
        };
        Column::new(name, kind, about, values)
    }

    /// A map of texts.
    pub(crate) fn map(
        name: &str,
        about: &'static str,
        pairs: impl Fn(&R) -> &[(String, String)] + Send + 'static,
    ) -> Column<R> {
        type Of = Column<(String, String)>;
        let columns = vec![
            Of::text("key", "", |(key, _)| key.into()),
            Of::text("value", "", |(_, value)| value.into()),
        ];
        let field = Arc::new(Field::new("key_value", DataType::Struct(fields(&columns)), false));
        let kind = DataType::Map(field.clone(), false);
        let values = move |rows: &[R]| {
            let (ends, structs) = entries(rows, &pairs, &columns)?;
            Ok(Arc::new(MapArray::try_new(field.clone(), ends, structs, None, false)?) as ArrayRef)
        };
        Column::new(name, kind, about, values)
    }

    /// The column with values that are never null.
    pub(crate) fn always(mut self) -> Column<R> {
        self.field.set_nullable(false);
        self
    }
}

/// The columns as Arrow's schema.
pub(crate) fn schema<R>(columns: &[Column<R>]) -> SchemaRef {
    Arc::new(Schema::new(fields(columns)))
}

/// The columns for these rows.
///
/// # Errors
/// A list is past 2^31 items.
pub(crate) fn batch<R>(columns: &[Column<R>], rows: &[R]) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_new(schema(columns), arrays(columns, rows)?)
}

fn fields<R>(columns: &[Column<R>]) -> Fields {
    columns.iter().map(|column| column.field.clone()).collect()
}

fn arrays<R>(columns: &[Column<R>], rows: &[R]) -> Result<Vec<ArrayRef>, ArrowError> {
    columns.iter().map(|column| (column.values)(rows)).collect()
}

/// The field of the items of a list, as Parquet names it.
fn item(kind: DataType) -> Arc<Field> {
    Arc::new(Field::new("element", kind, false))
}

fn numbers<R, P: ArrowPrimitiveType>(
    of: impl Fn(&R) -> Option<P::Native>,
) -> impl Fn(&[R]) -> Result<ArrayRef, ArrowError> {
    move |rows| Ok(Arc::new(rows.iter().map(&of).collect::<PrimitiveArray<P>>()))
}

/// The items of all rows, and the end of each row's items among them.
fn entries<R, I: Clone + 'static>(
    rows: &[R],
    items: impl Fn(&R) -> &[I],
    columns: &[Column<I>],
) -> Result<(OffsetBuffer<i32>, StructArray), ArrowError> {
    let (mut all, mut ends) = (Vec::new(), vec![0]);
    for row in rows {
        all.extend_from_slice(items(row));
        // The rows of one batch have less than 2^31 items.
        ends.push(all.len() as i32);
    }
    let structs = StructArray::try_new(fields(columns), arrays(columns, &all)?, None)?;
    Ok((OffsetBuffer::new(ScalarBuffer::from(ends)), structs))
}
