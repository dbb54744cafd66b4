package holdfast;

import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.util.LongAccumulator;

/**
 * The first rows of a partition, up to a number of bytes. If there are more, the rest is not computed, and the
 * accumulator counts the partition. A row of unknown size is never among them.
 */
public final class FewRows implements FlatMapFunction<Iterator<InternalRow>, InternalRow> {

  private static final long serialVersionUID = 1L;

  private final long mostBytes;
  private final LongAccumulator cut;

  public FewRows(long mostBytes, LongAccumulator cut) {
    this.mostBytes = mostBytes;
    this.cut = cut;
  }

  @Override
  public Iterator<InternalRow> call(Iterator<InternalRow> rows) {
    return new First(rows);
  }

  /** Looks one row ahead. Spark may reuse the memory of a row for the next one, so it looks no further. */
  private final class First implements Iterator<InternalRow> {

    private final Iterator<InternalRow> rows;
    private InternalRow ahead;
    private long bytes;
    private boolean ended;

    First(Iterator<InternalRow> rows) {
      this.rows = rows;
    }

    @Override
    public boolean hasNext() {
      if (ahead == null && !ended) {
        if (rows.hasNext()) {
          ahead = accepted(rows.next());
        }
        ended = ahead == null;
      }
      return !ended;
    }

    private InternalRow accepted(InternalRow row) {
      if (row instanceof UnsafeRow sized) {
        bytes += sized.getSizeInBytes();
        if (bytes <= mostBytes) {
          return row;
        }
      }
      cut.add(1);
      return null;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      InternalRow row = ahead;
      ahead = null;
      return row;
    }
  }
}
