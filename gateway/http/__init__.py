"""HTTP: routes, who may come in, errors at the edge; the only home of falcon and gunicorn."""
