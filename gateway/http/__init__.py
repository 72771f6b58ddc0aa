"""The HTTP server: routes, access control and error answers. Only this room imports falcon and
gunicorn.
"""
