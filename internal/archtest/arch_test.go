package archtest

import (
	"bufio"
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/tabletopic/tabletopic"
)

// level of each package; imports point to a lower level, or to a package that allowed names.
// Test files may import anything below level 6, as long as Go permits the cycle-free build.
var level = map[string]int{
	"objectstore":                 0,
	"objectstore/objectstoretest": 0,
	"record":                      0,
	"internal/invariant":          0,
	"internal/crc32c":             0,
	"internal/hugepage":           0,
	"internal/limitlog":           0,
	"internal/lab":                0,
	"internal/strictfs":           0,
	"internal/clickstream":        0,
	"internal/protofile":          0,
	"internal/archtest":           0,
	"streamstore":                 1,
	"streamstore/streamstoretest": 1,
	"parquetio":                   1,
	"parquetio/parquetiotest":     1,
	"catalog":                     1,
	"catalog/catalogtest":         1,
	"metadata":                    2,
	"security":                    3,
	"internal/shard":              2,
	"maintenance":                 2,
	"catalog/awsconfig":           1,
	"catalog/glue":                2,
	"catalog/hive":                2,
	"catalog/rest":                2,
	"catalog/sql":                 2,
	"partition":                   3,
	"internal/shards":             3,
	"broker/share":                2,
	"broker/group":                3,
	"broker/txn":                  3,
	"coordinator/control":         3,
	"catalog/s3tables":            3,
	"catalog/server":              3,
	"catalog/named":               4,
	"broker":                      4,
	"worker":                      4,
	"coordinator":                 4,
	"schemaregistry":              4,
	"node":                        5,
	"cmd/tabletopic":              6,
	"e2e":                         6,
	"examples":                    6,
	"internal/sim":                6,
}

// allowed are the edges inside one level.
var allowed = map[string][]string{
	"objectstore":                 {"internal/invariant", "internal/hugepage"},
	"objectstore/objectstoretest": {"objectstore"},
	"record":                      {"internal/invariant", "internal/crc32c"},
	"streamstore/streamstoretest": {"streamstore"},
	"catalog/catalogtest":         {"catalog"},
	"internal/shards":             {"partition"},
	"broker/group":                {"partition", "internal/shards"},
	"broker/txn":                  {"partition", "internal/shards"},
	"coordinator/control":         {"partition"},
}

type source struct {
	path string // relative to the root
	pkg  string
	file *ast.File
	fset *token.FileSet
}

// sources parses every Go file of the module.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	fset := token.NewFileSet()
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		f, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, source{path, filepath.ToSlash(filepath.Dir(path)), f, fset})
	})
	return out
}

// walk visits the files of the project, without what version control ignores.
func walk(t *testing.T, fn func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		name := d.Name()
		if d.IsDir() && rel != "." && (strings.HasPrefix(name, ".") && name != ".ci" || name == "testdata" || name == "tabletopic-data" || name == "target" || name == "__pycache__") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			fn(filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, s := range sources(t) {
		own, known := level[top(s.pkg)]
		if !known {
			t.Errorf("%s: package %s is not in the list of levels", s.path, s.pkg)
			continue
		}
		for _, imp := range s.file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			to, ours := strings.CutPrefix(path, module+"/")
			if !ours || to == s.pkg {
				continue
			}
			test := strings.HasSuffix(s.path, "_test.go")
			if test && level[to] < 6 || level[to] < own || slices.Contains(allowed[s.pkg], to) {
				continue
			}
			t.Errorf("%s: %s (level %d) must not import %s (level %d)", s.path, s.pkg, own, to, level[to])
		}
	}
}

// top folds the many small programs of e2e and examples into one entry.
func top(pkg string) string {
	for _, dir := range []string{"e2e", "examples"} {
		if strings.HasPrefix(pkg, dir+"/") {
			return dir
		}
	}
	return pkg
}

func TestNoSleepInTests(t *testing.T) {
	for _, s := range sources(t) {
		if !strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		for _, call := range calls(s.file) {
			if call.name == "time.Sleep" {
				t.Errorf("%s: time.Sleep in a test; wait for the condition itself", s.fset.Position(call.pos))
			}
		}
	}
}

func TestPanicOnlyInInvariant(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") || s.pkg == "internal/invariant" {
			continue
		}
		for _, call := range calls(s.file) {
			if call.name == "panic" {
				t.Errorf("%s: panic outside internal/invariant; use invariant.Check for a bug of ours, an error for anything else", s.fset.Position(call.pos))
			}
		}
	}
}

// The pure cores take time and ids as arguments.
func TestStateIsPure(t *testing.T) {
	for _, s := range sources(t) {
		base := filepath.Base(s.path)
		if !strings.HasPrefix(base, "state") || strings.HasSuffix(base, "_test.go") {
			continue
		}
		for _, call := range calls(s.file) {
			if call.name == "time.Now" || strings.HasPrefix(call.name, "rand.") || call.name == "uuid.New" {
				t.Errorf("%s: %s in a state file", s.fset.Position(call.pos), call.name)
			}
		}
	}
}

type call struct {
	name string
	pos  token.Pos
}

func calls(f *ast.File) []call {
	var out []call
	ast.Inspect(f, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch fun := c.Fun.(type) {
		case *ast.Ident:
			out = append(out, call{fun.Name, c.Pos()})
		case *ast.SelectorExpr:
			if x, ok := fun.X.(*ast.Ident); ok {
				out = append(out, call{x.Name + "." + fun.Sel.Name, c.Pos()})
			}
		}
		return true
	})
	return out
}

var mention = regexp.MustCompile("`?([a-z0-9_/]+\\.go):([A-Za-z.]+)`?")

// Documents, and package comments in a doc.go, name functions as file.go:Func, or file.go:Type.Func; each must exist.
func TestDocumentsNameWhatExists(t *testing.T) {
	funcs := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				funcs[s.path+":"+d.Name.Name] = true
				if d.Recv != nil {
					funcs[s.path+":"+receiver(d)+"."+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						funcs[s.path+":"+ts.Name.Name] = true
					}
				}
			}
		}
	}
	mentions := 0
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".md") && filepath.Base(path) != "doc.go" {
			return
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mention.FindAllStringSubmatch(string(text), -1) {
			mentions++
			if !funcs[m[1]+":"+m[2]] {
				t.Errorf("%s names %s:%s, which does not exist", path, m[1], m[2])
			}
		}
	})
	if mentions < 10 {
		t.Errorf("documents name %d functions, want the walks of ARCHITECTURE.md", mentions)
	}
}

func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// Every guard that make mutate switches off exists in the code, and the other way round.
func TestGuardsAreListed(t *testing.T) {
	used := map[string]string{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.path, "_test.go") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || len(c.Args) != 1 {
				return true
			}
			sel, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Off" {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); !ok || x.Name != "invariant" {
				return true
			}
			lit, ok := c.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name of a guard must be a literal", s.fset.Position(c.Pos()))
				return true
			}
			name, _ := strconv.Unquote(lit.Value)
			used[name] = s.path
			return true
		})
	}
	listed := map[string]bool{}
	text, err := os.ReadFile(filepath.Join(root, "internal/invariant/guards.txt"))
	if err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(bytes.NewReader(text))
	for scan.Scan() {
		line := scan.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "|")
		if len(fields) != 4 {
			t.Errorf("guards.txt: %q: want guard | invariant | package | test", line)
			continue
		}
		listed[strings.TrimSpace(fields[0])] = true
	}
	for name, path := range used {
		if !listed[name] {
			t.Errorf("%s: guard %q is not in internal/invariant/guards.txt", path, name)
		}
	}
	for name := range listed {
		if used[name] == "" {
			t.Errorf("internal/invariant/guards.txt lists %q, which no code asks for", name)
		}
	}
}
