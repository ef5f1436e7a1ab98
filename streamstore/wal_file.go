package streamstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tabletopic/tabletopic/internal/invariant"
)

// The files of a file WAL.
//
//	<dir>/<node>/<node epoch, 16 hex>/<first sequence, 16 hex>.wal   bulks, one after another
//	<dir>/<node>/<node epoch, 16 hex>/FENCE                          a fence: that life is over
const (
	walSegmentSuffix = ".wal"
	walFenceFile     = "FENCE"
	walSegmentBytes  = 64 << 20

	walAhead  = 64 << 10 // where a smaller bulk makes the file longer, it does by this
	walPieces = 1024     // of a bulk that are written at once: IOV_MAX of Linux
)

func walNodeDir(dir string, node NodeID) string {
	return filepath.Join(dir, strconv.Itoa(int(node)))
}

func walLifeDir(dir string, node NodeID, epoch int64) string {
	return filepath.Join(walNodeDir(dir, node), fmt.Sprintf("%016x", uint64(epoch)))
}

type walSegment struct {
	name  string
	first uint64 // sequence of its first bulk
}

// fileWAL appends bulks to segment files, with one fsync for each.
//
// Fencing: a writer looks for FENCE after its fsync and before it acknowledges; a taker
// creates FENCE before it reads. On one machine, whose file system orders both, that is
// safe: if the writer saw no FENCE, its bytes were in the file before FENCE came to be and
// so before the taker read; else it acknowledges nothing.
//
// Where the file system can, bulks are written past the page cache, from where their records were
// put together: to have pages found, filled, marked and sought out again by the fsync costs more
// than all else that is done with them. No block that holds a bulk is written again: what a crash
// leaves of the last one, sector by sector, is of no older one.
//
// To make a file longer is a second write for its fsync, into the file system's journal. A bulk of
// less than walAhead brings zeros up to that, so that those which follow find room in the file.
type fileWAL struct {
	fs      vfs.FS
	dir     string
	log     *slog.Logger
	file    vfs.File // last segment; nil before the first bulk
	direct  vfs.File // the same, past the page cache; nil if that is not possible
	size    int64    // of the bulks in the last segment …
	ahead   int64    // … and of its file, which zeros may end
	refused bool     // direct was, and the log has it
	zeros   []byte   // walAhead of them

	mu       sync.Mutex   // the WAL's writer adds segments, the upload loop trims them
	segments []walSegment // guarded by mu
}

// openFileWAL makes the directory of a new life.
func openFileWAL(fs vfs.FS, dir string, node Node, log *slog.Logger) (*fileWAL, error) {
	d := &fileWAL{fs: fs, log: log, dir: walLifeDir(dir, node.ID, node.Epoch), zeros: alignedBuffer(walAhead)}
	if err := makeDir(fs, d.dir); err != nil {
		return nil, fmt.Errorf("make WAL directory %s: %w", d.dir, err)
	}
	return d, nil
}

// makeDir makes dir and its parents durable.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write appends the bulk. An error is final: after a failed write or fsync nobody knows
// what the disk holds, so the file is not written again. A full disk is waited out.
func (d *fileWAL) write(ctx context.Context, seq uint64, bulk [][]byte) (settled bool, err error) {
	if err := d.writeSync(ctx, seq, bulk); err != nil {
		return true, fmt.Errorf("write WAL bulk %d in %s: %w", seq, d.dir, err)
	}
	return true, d.check()
}

func (d *fileWAL) writeSync(ctx context.Context, seq uint64, bulk [][]byte) error {
	if d.file == nil || d.size >= walSegmentBytes {
		if err := d.withRoom(ctx, func() error { return d.rotate(seq) }); err != nil {
			return err
		}
	}
	if err := d.append(ctx, bulk); err != nil {
		return err
	}
	if invariant.Off("file-wal-fsync") {
		return nil
	}
	return d.file.SyncData()
}

// append writes a bulk behind those of the segment.
func (d *fileWAL) append(ctx context.Context, bulk [][]byte) error {
	size := int64(0)
	for _, p := range bulk {
		size += int64(len(p))
	}
	rest, at := slices.Clone(bulk), d.size
	end := at + size
	if end > d.ahead && size < walAhead {
		rest = append(rest, d.zeros[:walAhead-size])
		end = at + walAhead
	}
	write := func() error {
		for len(rest) > 0 {
			n, err := d.writeSome(rest, at)
			at += int64(n)
			for len(rest) > 0 && n >= len(rest[0]) {
				n -= len(rest[0])
				rest = rest[1:]
			}
			if len(rest) > 0 {
				rest[0] = rest[0][n:]
			}
			if vfs.IsNoSpaceError(err) && at >= d.size+size { // it is zeros that find no room
				end = at / walBlock * walBlock
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	err := d.withRoom(ctx, write)
	if d.direct != nil && errors.Is(err, syscall.EINVAL) { // the file system has no such writes, or one ended within a block when the disk was full
		d.throughCache(err)
		err = d.direct.Close()
		d.direct = nil
		if err == nil {
			err = d.withRoom(ctx, write)
		}
	}
	if err != nil {
		return err
	}
	d.size += size
	d.ahead = max(d.ahead, end)
	return nil
}

// writeSome writes from the beginning of pieces, one of them or more, and returns how many bytes.
func (d *fileWAL) writeSome(pieces [][]byte, at int64) (int, error) {
	if d.direct == nil {
		return d.file.WriteAt(pieces[0], at) // Write of a vfs.File may change what readers share
	}
	n, err := d.fs.(directFS).WriteDirect(d.direct, pieces[:min(len(pieces), walPieces)], at)
	if n == 0 && err == nil {
		err = io.ErrShortWrite
	}
	return n, err
}

// A directFS is a file system that can be written past its page cache.
type directFS interface {
	// OpenDirect opens a file that exists for WriteDirect.
	OpenDirect(name string) (vfs.File, error)
	// WriteDirect writes pieces, one behind another, and returns how many bytes it wrote, which may be fewer. Each piece is
	// whole blocks, in the file and in memory; anything else ends with EINVAL, as any write does if the file system turns out
	// not to be able to. A sync of the file, opened otherwise, makes it durable.
	WriteDirect(f vfs.File, pieces [][]byte, at int64) (int, error)
}

// roomInterval is how often a full disk is tried again.
const roomInterval = 250 * time.Millisecond

// withRoom repeats write while the disk has no room for it. Nothing of the bulk is
// acknowledged meanwhile, and what did not fit is written to the same place later; appends
// wait, and clients are told REQUEST_TIMED_OUT.
func (d *fileWAL) withRoom(ctx context.Context, write func() error) error {
	err := write()
	if !vfs.IsNoSpaceError(err) {
		return err
	}
	d.log.Error("the disk of the write-ahead log is full: produce waits until there is room", "dir", d.dir, "err", err)
	tick := time.NewTicker(roomInterval)
	defer tick.Stop()
	for vfs.IsNoSpaceError(err) {
		select {
		case <-tick.C:
			err = write()
		case <-ctx.Done():
			return err
		}
	}
	if err == nil {
		d.log.Info("the disk of the write-ahead log has room again", "dir", d.dir)
	}
	return err
}

// check fails if a taker has put up its fence.
func (d *fileWAL) check() error {
	_, err := d.fs.Stat(filepath.Join(d.dir, walFenceFile))
	switch {
	case err == nil && invariant.Off("file-wal-fence"):
		return nil
	case err == nil:
		return fmt.Errorf("WAL directory %s holds a fence: %w", d.dir, ErrNodeFenced)
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("look for a fence in %s: %w", d.dir, err)
	}
	if _, err := d.fs.Stat(d.dir); err != nil {
		return fmt.Errorf("look for a fence: %w", err)
	}
	return nil
}

func (d *fileWAL) rotate(seq uint64) error {
	if err := d.close(); err != nil {
		return err
	}
	name := fmt.Sprintf("%016x%s", seq, walSegmentSuffix)
	f, err := d.fs.OpenReadWrite(filepath.Join(d.dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err := syncDir(d.fs, d.dir); err != nil {
		return errors.Join(err, f.Close())
	}
	d.file, d.size, d.ahead = f, 0, 0
	d.openDirect(name)
	d.mu.Lock()
	d.segments = append(d.segments, walSegment{name, seq})
	d.mu.Unlock()
	return nil
}

// openDirect opens the segment past the page cache, if that is possible.
func (d *fileWAL) openDirect(name string) {
	fs, ok := d.fs.(directFS)
	if !ok {
		return
	}
	f, err := fs.OpenDirect(filepath.Join(d.dir, name))
	if err != nil {
		d.throughCache(err)
		return
	}
	d.direct = f
}

// throughCache says, once, why a segment goes through the page cache.
func (d *fileWAL) throughCache(err error) {
	if !d.refused {
		d.refused = true
		d.log.Info("WAL goes through the page cache, which takes more CPU: the file system does not take it past that", "directory", d.dir, "error", err)
	}
}

// trim removes the segments that hold nothing from mark on. The last one always stays.
func (d *fileWAL) trim(_ context.Context, mark uint64) error {
	d.mu.Lock()
	n := 0
	for n+1 < len(d.segments) && d.segments[n+1].first <= mark {
		n++
	}
	old := slices.Clone(d.segments[:n])
	d.segments = slices.Delete(d.segments, 0, n)
	d.mu.Unlock()
	for _, s := range old {
		if err := d.fs.Remove(filepath.Join(d.dir, s.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("trim WAL below %d: %w", mark, err)
		}
	}
	return nil
}

func (d *fileWAL) close() error {
	var err error
	if d.direct != nil {
		err = d.direct.Close()
	}
	if d.file != nil {
		err = errors.Join(err, d.file.Close())
	}
	d.direct, d.file = nil, nil
	return err
}

// fileWALReader takes over the file WAL of an earlier life.
type fileWALReader struct {
	fs    vfs.FS
	dir   string
	node  NodeID
	state WALState
	by    Node
	nonce nonce
	log   *slog.Logger
	wrote nonce  // of the bulks that were read; zero before the first
	end   uint64 // sequence after the last whole bulk, after read
}

// fence creates FENCE. It is written beside and renamed, so that it is never torn or
// absent again once it was there.
func (r *fileWALReader) fence(context.Context) error {
	if err := makeDir(r.fs, r.dir); err != nil {
		return fmt.Errorf("fence WAL directory %s: %w", r.dir, err)
	}
	tmp := filepath.Join(r.dir, fmt.Sprintf("%s.%016x", walFenceFile, uint64(r.by.Epoch)))
	err := writeFile(r.fs, tmp, appendFence(nil, r.node, r.state.Epoch, 0, r.nonce))
	if err == nil {
		err = r.fs.Rename(tmp, filepath.Join(r.dir, walFenceFile))
	}
	if err == nil {
		err = syncDir(r.fs, r.dir)
	}
	if err != nil {
		return fmt.Errorf("fence WAL directory %s: %w", r.dir, err)
	}
	return nil
}

func writeFile(fs vfs.FS, name string, data []byte) error {
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// read calls fn with each bulk from the mark on. A bulk that a crash has torn ends it: it
// was never acknowledged, because its fsync never returned.
func (r *fileWALReader) read(ctx context.Context, fn func(seq uint64, body []byte) error) error {
	segments, err := listSegments(r.fs, r.dir)
	if err != nil {
		return fmt.Errorf("read WAL directory %s: %w", r.dir, err)
	}
	r.end = r.state.Mark
	if len(segments) == 0 {
		if r.state.Mark > 0 {
			return fmt.Errorf("WAL directory %s holds no segment, want one with bulk %d: %w", r.dir, r.state.Mark, ErrCorrupt)
		}
		return nil
	}
	next := segments[0].first
	if next > r.state.Mark {
		return fmt.Errorf("WAL directory %s starts at bulk %d, want %d: %w", r.dir, next, r.state.Mark, ErrCorrupt)
	}
	for i, s := range segments {
		name := filepath.Join(r.dir, s.name)
		if s.first != next && !invariant.Off("wal-missing-is-corruption") {
			return fmt.Errorf("WAL segment %s follows bulk %d: bulks between are missing: %w", name, next, ErrCorrupt)
		}
		if next, err = r.readSegment(ctx, name, s.first, i == len(segments)-1, fn); err != nil {
			return err
		}
	}
	r.end = max(next, r.state.Mark)
	return nil
}

func listSegments(fs vfs.FS, dir string) ([]walSegment, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	var segments []walSegment
	for _, name := range names {
		if hex, ok := strings.CutSuffix(name, walSegmentSuffix); ok {
			if first, err := strconv.ParseUint(hex, 16, 64); err == nil {
				segments = append(segments, walSegment{name, first})
			}
		}
	}
	slices.SortFunc(segments, func(a, b walSegment) int { return strings.Compare(a.name, b.name) })
	return segments, nil
}

// readSegment returns the sequence after the segment's last whole bulk. Any may end in zeros that
// no bulk came to, the last alone in a torn one.
func (r *fileWALReader) readSegment(ctx context.Context, name string, seq uint64, last bool, fn func(seq uint64, body []byte) error) (uint64, error) {
	f, err := r.fs.Open(name)
	if err != nil {
		return seq, fmt.Errorf("open WAL segment: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return seq, fmt.Errorf("stat WAL segment %s: %w", name, err)
	}
	for pos, size := int64(0), info.Size(); pos < size; seq++ {
		if err := ctx.Err(); err != nil {
			return seq, err
		}
		data, h, err := readFileBulk(f, pos, size)
		if err == nil && (h.kind != bulkData || h.node != r.node || h.epoch != r.state.Epoch || h.seq != seq) {
			err = corrupt("bulk %d of node %d epoch %d, want bulk %d of node %d epoch %d", h.seq, h.node, h.epoch, seq, r.node, r.state.Epoch)
		}
		if errors.Is(err, ErrCorrupt) && endsAt(f, pos, size) {
			return seq, nil
		}
		if errors.Is(err, ErrCorrupt) && last && torn(f, data, pos, size, h) && !r.followed(f, pos, size, seq) {
			r.log.Info("WAL ends in a bulk torn by a crash, never acknowledged", "file", name, "position", pos, "bytes", size-pos)
			return seq, nil
		}
		if err != nil {
			return seq, fmt.Errorf("WAL segment %s at byte %d of %d: %w", name, pos, size, err)
		}
		r.wrote = h.nonce
		if seq >= r.state.Mark {
			if err := fn(seq, data[walHeaderSize:len(data)-walTrailerSize]); err != nil {
				return seq, fmt.Errorf("WAL segment %s, bulk at byte %d: %w", name, pos, err)
			}
		}
		pos += int64(len(data))
	}
	return seq, nil
}

// readFileBulk returns the checked bulk at pos; after an error what could be read of it.
func readFileBulk(f io.ReaderAt, pos, size int64) ([]byte, bulkHeader, error) {
	data := make([]byte, min(walHeaderSize, size-pos))
	if _, err := f.ReadAt(data, pos); err != nil && err != io.EOF {
		return nil, bulkHeader{}, err
	}
	h, _, err := parseBulkHeader(data)
	if err != nil {
		return data, h, err
	}
	data = make([]byte, min(int64(h.size()), size-pos))
	if _, err := f.ReadAt(data, pos); err != nil && err != io.EOF {
		return nil, h, err
	}
	_, _, _, err = parseBulk(data)
	return data, h, err
}

// endsAt reports whether the bulks of a segment may end at pos: less than walAhead is behind it, and
// only zeros.
func endsAt(f io.ReaderAt, pos, size int64) bool {
	if size-pos >= walAhead {
		return false
	}
	rest := make([]byte, max(size-pos, 0))
	if _, err := f.ReadAt(rest, pos); err != nil && err != io.EOF {
		return false
	}
	return !slices.ContainsFunc(rest, func(b byte) bool { return b != 0 })
}

// torn tells a bulk that a crash cut off from one that was whole once. A torn bulk is the
// last thing in the file, and what is missing is missing from the end or reads as zeros in
// whole sectors. Anything else has been durable, and may have been acknowledged.
func torn(f io.ReaderAt, data []byte, pos, size int64, h bulkHeader) bool {
	const sector = 512
	if invariant.Off("file-wal-torn-only") {
		return true
	}
	if len(data) < walHeaderSize {
		return true
	}
	if h.body > 0 { // the header is whole
		if pos+int64(h.size()) > size {
			return true
		}
		if !endsAt(f, pos+int64(h.size()), size) {
			return false
		}
	}
	for at := int64(0); at < int64(len(data)); {
		end := min((pos+at)/sector*sector+sector-pos, int64(len(data)))
		if !slices.ContainsFunc(data[at:end], func(b byte) bool { return b != 0 }) {
			return true
		}
		at = end
	}
	return false
}

// followed reports whether the header of a bulk behind pos, where that of number seq is, says a
// later number: then the one at pos was durable, whatever is left of it. A header in a payload has
// another nonce.
func (r *fileWALReader) followed(f io.ReaderAt, pos, size int64, seq uint64) bool {
	if invariant.Off("file-wal-followed") {
		return false
	}
	header := make([]byte, walHeaderSize)
	for at := wholeBlocks(pos + 1); at+walHeaderSize <= size; at += walBlock {
		if _, err := f.ReadAt(header, at); err != nil {
			return true
		}
		if h, _, err := parseBulkHeader(header); err == nil && h.node == r.node && h.epoch == r.state.Epoch && h.seq > seq && (h.nonce == r.wrote || r.wrote == nonce{}) {
			return true
		}
	}
	return false
}

func (r *fileWALReader) fenced() uint64 { return r.end }

// remove deletes the segments. FENCE stays for ever.
func (r *fileWALReader) remove(context.Context) error {
	segments, err := listSegments(r.fs, r.dir)
	for _, s := range segments {
		err = errors.Join(err, r.fs.Remove(filepath.Join(r.dir, s.name)))
	}
	return err
}
