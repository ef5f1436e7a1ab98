package parquetio

// sibling returns an empty builder of the same table.
func (b *Builder) sibling() *Builder {
	out := &Builder{table: b.table, schema: b.schema, kafka: b.kafka, limit: b.limit}
	out.cols, out.top = layout(b.table)
	for i := range out.cols {
		out.cols[i].reset()
	}
	return out
}

// all returns the numbers of the rows.
func (b *Builder) all() []int32 {
	rows := make([]int32, b.rows)
	for i := range rows {
		rows[i] = int32(i)
	}
	return rows
}

// gather appends rows of another builder of the same table.
func (b *Builder) gather(from *Builder, rows []int32) {
	for _, i := range b.top {
		gather(b.cols, from.cols, i, rows)
	}
	b.rows += len(rows)
}

// gather appends values of the column at i of src, and of what lies inside it, to dst.
func gather(dst, src []column, i int, rows []int32) {
	d, s := &dst[i], &src[i]
	switch s.kind {
	case columnBit:
		for n, r := range rows {
			at := d.n + n
			if at&7 == 0 {
				d.data = append(d.data, 0)
			}
			d.data[at>>3] |= s.data[r>>3] >> (r & 7) & 1 << (at & 7)
		}
	case column4:
		for _, r := range rows {
			d.i32 = append(d.i32, s.i32[r])
		}
	case column8:
		for _, r := range rows {
			d.i64 = append(d.i64, s.i64[r])
		}
	case columnFixed:
		for _, r := range rows {
			d.data = append(d.data, s.blobAt(int(r))...)
		}
	case columnBytes:
		for _, r := range rows {
			d.data = append(d.data, s.blobAt(int(r))...)
			d.offsets = append(d.offsets, int32(len(d.data)))
		}
	case columnStruct:
		for _, k := range s.kids {
			gather(dst, src, k, rows)
		}
	case columnList, columnMap:
		var items []int32
		end := d.offsets[len(d.offsets)-1]
		for _, r := range rows {
			for item := s.offsets[r]; item < s.offsets[r+1]; item++ {
				items = append(items, item)
			}
			end += s.offsets[r+1] - s.offsets[r]
			d.offsets = append(d.offsets, end)
		}
		for _, k := range s.kids {
			gather(dst, src, k, items)
		}
	}
	for _, r := range rows {
		if s.nulls > 0 && s.valid[r>>3]&(1<<(r&7)) == 0 {
			d.absent()
		} else {
			d.present()
		}
	}
}

// clear forgets the rows, and keeps the memory for the next.
func (b *Builder) clear() {
	for _, i := range b.top {
		truncate(b.cols, i, 0)
	}
	for i := range b.cols {
		b.cols[i].nulls, b.cols[i].valid = 0, b.cols[i].valid[:0]
	}
	b.rows = 0
}
