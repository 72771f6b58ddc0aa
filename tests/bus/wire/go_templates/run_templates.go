// Runs templates with Go's own text/template: reads lines of JSON {"template", "data"} from standard
// input and writes for each one line: {"text"} or {"error"}.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type given struct {
	Template string `json:"template"`
	Data     any    `json:"data"`
}

func plain(value any) any {
	switch known := value.(type) {
	case json.Number:
		if !strings.ContainsAny(known.String(), ".eE") {
			if whole, err := known.Int64(); err == nil {
				return int(whole)
			}
		}
		fraction, _ := known.Float64()
		return fraction
	case []any:
		for place := range known {
			known[place] = plain(known[place])
		}
	case map[string]any:
		for key := range known {
			known[key] = plain(known[key])
		}
	}
	return value
}

func asJSON(value any) string {
	written, _ := json.Marshal(value)
	return string(written)
}

func run(one given) (string, error) {
	read, err := template.New("").Funcs(template.FuncMap{"json": asJSON}).Parse(one.Template)
	if err != nil {
		return "", err
	}
	var made bytes.Buffer
	err = read.Execute(&made, plain(one.Data))
	return made.String(), err
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	written := json.NewEncoder(os.Stdout)
	written.SetEscapeHTML(false)
	for lines.Scan() {
		var one given
		reads := json.NewDecoder(strings.NewReader(lines.Text()))
		reads.UseNumber()
		if err := reads.Decode(&one); err != nil {
			panic(err)
		}
		text, err := run(one)
		if err != nil {
			written.Encode(map[string]string{"error": err.Error()})
		} else {
			written.Encode(map[string]string{"text": text})
		}
	}
}
