package metadata

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// Generation object: which database may write.
//
//	┌──────────┬────────┬──────────┬────────────┬──────────┬──────────┐
//	│ "TGEN" 4 │ ver  1 │ number 8 │ cluster 22 │ nonce 16 │ crc32c 4 │
//	└──────────┴────────┴──────────┴────────────┴──────────┴──────────┘
//
// Integers are big-endian; cluster is the cluster's id in ASCII; the checksum is over all
// bytes before it.
//
// Versions: 1, the first.
const (
	generationMagic   = "TGEN"
	generationVersion = 1
	clusterIDSize     = 22
	nonceSize         = 16
	generationSize    = len(generationMagic) + 1 + 8 + clusterIDSize + nonceSize + 4
)

// A generation is one database of a cluster: the first, or one that was restored.
type generation struct {
	number  int64
	cluster string
	nonce   string // in hexadecimal, as the database has it
}

var errCorruptGeneration = errors.New("corrupt generation object")

func appendGeneration(dst []byte, g generation) ([]byte, error) {
	nonce, err := hex.DecodeString(g.nonce)
	if err != nil || len(nonce) != nonceSize || len(g.cluster) != clusterIDSize || g.number <= 0 {
		return nil, fmt.Errorf("bad generation %+v", g)
	}
	begin := len(dst)
	dst = append(dst, generationMagic...)
	dst = append(dst, generationVersion)
	dst = binary.BigEndian.AppendUint64(dst, uint64(g.number))
	dst = append(dst, g.cluster...)
	dst = append(dst, nonce...)
	return append(dst[:begin], sealed(dst[begin:])...), nil
}

func parseGeneration(src []byte) (generation, error) {
	if len(src) < len(generationMagic)+1 || string(src[:len(generationMagic)]) != generationMagic {
		return generation{}, fmt.Errorf("%w: no magic", errCorruptGeneration)
	}
	body, ok := unsealed(src)
	if !ok {
		return generation{}, fmt.Errorf("%w: checksum", errCorruptGeneration)
	}
	if v := src[len(generationMagic)]; v != generationVersion {
		return generation{}, fmt.Errorf("generation object of version %d, this program reads version %d", v, generationVersion)
	}
	if len(src) != generationSize {
		return generation{}, fmt.Errorf("%w: %d bytes", errCorruptGeneration, len(src))
	}
	rest := body[len(generationMagic)+1:]
	g := generation{
		number:  int64(binary.BigEndian.Uint64(rest)),
		cluster: string(rest[8 : 8+clusterIDSize]),
		nonce:   hex.EncodeToString(rest[8+clusterIDSize:]),
	}
	if g.number <= 0 {
		return generation{}, fmt.Errorf("%w: number %d", errCorruptGeneration, g.number)
	}
	return g, nil
}

// DumpGeneration writes the annotated text of a generation object.
func DumpGeneration(w io.Writer, data []byte) error {
	g, err := parseGeneration(data)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%-46x magic %q\n%-46x version %d\n%-46x generation %d\n%-46x cluster %s\n%-46x nonce\n%-46x crc32c\n",
		data[:4], data[:4], data[4:5], data[4], data[5:13], g.number, data[13:35], g.cluster, data[35:51], data[51:])
	return err
}
